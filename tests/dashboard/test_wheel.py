"""Whoever installs the wheel has the dashboard: every file, and the licence of each vendored one."""

import re
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.build import build_wheel

ROOT = Path(__file__).parents[2]


def test_the_wheel_carries_the_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    with ZipFile(tmp_path / build_wheel(str(tmp_path))) as wheel:
        carried = set(wheel.namelist())
        told = next(name for name in carried if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(told).decode()
    source = ROOT / "src"
    files = [path for path in (source / "fairlead/server/dashboard").rglob("*") if path.is_file()]
    assert len(files) > 40
    assert {str(path.relative_to(source)) for path in files} <= carried
    licences = {name for name in carried if "licenses/" in name}
    assert {"LICENSE.preact", "LICENSE.htm", "LICENSE.uplot"} <= {
        Path(one).name for one in licences
    }
    # What is carried is under these licences, and the wheel says so.
    vendored = (source / "fairlead/server/dashboard/vendor/README.md").read_text()
    named = set(re.findall(r"\| ([\w.-]+) \(LICENSE\.\w+\) \|", vendored)) | {"MIT"}
    expression = re.search("^License-Expression: (.+)$", metadata, re.MULTILINE)
    assert expression is not None
    assert set(expression[1].split(" AND ")) == named == {"MIT", "Apache-2.0"}

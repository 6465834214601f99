"""Fragments become a changelog: by kind, in order, once."""

import datetime

import pytest

from tools.changelog import MARK, ROOT, fragments, main, section


@pytest.fixture
def project(tmp_path):
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("not a fragment")
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n{MARK}\n## 0.1.0 – 2020-01-01\n\nOld.\n"
    )
    for name, text in {
        "b-thing.fixed": "It is\nfixed.\n",
        "z-thing.added": "New.\n",
        "a-thing.added": "Also new.\n",
    }.items():
        (tmp_path / "changes" / f"{name}.md").write_text(text)
    return tmp_path


def test_a_release_gathers_what_there_is(project):
    main(["0.2.0"], project)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    assert (project / "CHANGELOG.md").read_text() == (
        f"# Changelog\n\n{MARK}\n## 0.2.0 – {today}\n\n### Added\n\n- Also new.\n- New.\n\n"
        "### Fixed\n\n- It is fixed.\n\n## 0.1.0 – 2020-01-01\n\nOld.\n"
    )
    assert [path.name for path in (project / "changes").iterdir()] == ["README.md"]
    with pytest.raises(SystemExit, match="nothing to release"):
        main(["0.3.0"], project)


def test_without_a_version_nothing_is_written(project, capsys):
    before = (project / "CHANGELOG.md").read_text()
    main([], project)
    assert capsys.readouterr().out.startswith("## Unreleased\n\n### Added\n\n- Also new.\n")
    assert (project / "CHANGELOG.md").read_text() == before
    assert len(list((project / "changes").iterdir())) == 4


@pytest.mark.parametrize(
    ("version", "complaint"), [("0.1.0", "already"), ("two", "no version"), ("1.2", "no version")]
)
def test_a_version_that_cannot_be_changes_nothing(project, version, complaint):
    with pytest.raises(SystemExit, match=complaint):
        main([version], project)
    assert len(list((project / "changes").iterdir())) == 4


def test_a_file_that_is_no_fragment_is_named(project):
    (project / "changes" / "typo.aded.md").write_text("x")
    with pytest.raises(SystemExit, match=r"typo\.aded\.md is no fragment"):
        main(["0.2.0"], project)


def test_ours_can_be_gathered():
    text = section(fragments(ROOT / "changes"), "Unreleased")
    assert text.count("\n- ") == sum(map(len, fragments(ROOT / "changes").values())) > 0
    assert MARK in (ROOT / "CHANGELOG.md").read_text("utf-8")

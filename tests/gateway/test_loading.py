"""Reading a configuration: every problem at once, where it is, and what still runs."""

from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fairlead.documents import reading
from fairlead.gateway import loading
from fairlead.gateway.loading import Loaded, load, load_content
from fairlead.gateway.settings import BUILT_IN, PrioritySettings, Settings, Upstream, json_schema

ISSUE = """\
listen: 127.0.0.1:8080
admin: {listen: 127.0.0.1:8081}          # /metrics /livez /readyz /workers
upstreams:
  - {url: "http://127.0.0.1:9001", capacity: 256, health: /health}     # a number, or reported, or adaptive
tenants: {trusted_header: x-tenant-id}
priority_scheduler:
  enabled: true
  default_max_class: interactive
  classes:
    interactive: {reserved_floor: 64, reserved_per_slot: 0.25, queue_size: 256, queue_timeout: 30s, \
starvation_threshold: 5s, can_preempt: true}
  tenant_policies:
    "header:acme": {max_class: interactive, weight: 2}
fallback: {max_concurrent_requests: 256, queue_size: 100, queue_timeout: 60s}
"""
SMG = """\
classes:
  interactive:
    reserved_floor: 128
    reserved_per_slot: 0.25
    queue_size: 256
    queue_timeout_secs: 30
    starvation_threshold_secs: 5
    can_preempt: true
tenant_policies:
  "auth:acme": {max_class: interactive}
"""


def read(text: str | bytes) -> Loaded:
    return load_content(text.encode() if isinstance(text, str) else text, "gateway.yaml")


def only(text: str | bytes) -> reading.Problem:
    (problem,) = read(text).problems
    return problem


def in_scheduler(body: str) -> Loaded:
    return read("priority_scheduler:\n  enabled: true\n" + body)


def test_the_example_of_the_issue(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(ISSUE)
    for config in (file, str(file)):
        loaded = load(config)
        assert (loaded.problems, loaded.fatal, loaded.lines) == ((), (), ())
        assert loaded.source == str(file)
        scheduler = loaded.settings.priority_scheduler
        assert scheduler.enabled
        assert scheduler.classes["interactive"].reserved_floor == 64
        assert scheduler.classes["system"] == BUILT_IN["system"]
        assert scheduler.tenant_policies["header:acme"].weight == 2
        assert loaded.settings.upstreams[0].capacity == 256
        assert loaded.settings.fallback.queue_timeout == 60.0


def test_an_smg_file_loads_unchanged():
    loaded = read(SMG)
    assert not loaded.problems
    scheduler = loaded.settings.priority_scheduler
    assert scheduler.enabled
    assert scheduler.classes == BUILT_IN
    assert scheduler.tenant_policies["auth:acme"].max_class == "interactive"
    assert read("tenant_policies: {}").settings.priority_scheduler.enabled
    assert read("classes:").settings.priority_scheduler.enabled


def test_problems_of_an_smg_file_are_the_schedulers():
    loaded = read(SMG.replace("queue_size", "queue_sise") + '  "auth:acme": {}\n  x: {}\n')
    assert [(problem.line, problem.path) for problem in loaded.problems] == [
        (5, "priority_scheduler.classes.interactive.queue_sise"),
        (11, 'priority_scheduler.tenant_policies["auth:acme"]'),
        (12, "priority_scheduler.tenant_policies.x"),
    ]
    assert not loaded.fatal


def test_smg_names_work_inside_the_scheduler_with_any_seconds():
    loaded = in_scheduler(
        "  classes: {bulk: {queue_timeout_secs: 2.5, starvation_threshold_secs: 1}}"
    )
    assert not loaded.problems
    bulk = loaded.settings.priority_scheduler.classes["bulk"]
    assert (bulk.queue_timeout, bulk.starvation_threshold, bulk.queue_size) == (2.5, 1.0, 1024)


@pytest.mark.parametrize(("first", "second"), [("", "_secs"), ("_secs", "")])
def test_both_spellings_are_a_problem(first, second):
    text = f"  classes: {{bulk: {{queue_timeout{first}: 3, queue_timeout{second}: 4}}}}"
    (problem,) = in_scheduler(text).problems
    assert problem.path == "priority_scheduler.classes.bulk.queue_timeout_secs"
    assert "keep one" in problem.message


def test_a_partial_entry_keeps_the_rest_of_its_class():
    """W14: in the original this dropped the share to 0."""
    loaded = in_scheduler("  classes: {interactive: {queue_size: 3}}")
    expected = BUILT_IN["interactive"].model_copy(update={"queue_size": 3})
    assert loaded.settings.priority_scheduler.classes["interactive"] == expected


def test_the_order_of_classes_does_not_matter():
    lines = [f"    {name}: {{queue_size: {size}}}" for size, name in enumerate(BUILT_IN)]
    forward = in_scheduler("  classes:\n" + "\n".join(lines))
    backward = in_scheduler("  classes:\n" + "\n".join(reversed(lines)))
    assert forward.settings == backward.settings
    assert list(backward.settings.priority_scheduler.classes) == list(BUILT_IN)


def test_keys_without_a_value_are_absent():
    loaded = read("upstreams:\ntenants:\npriority_scheduler:\n  classes:\n    bulk:\nfallback:\n")
    assert loaded[:2] == (Settings(), ())
    assert only("nonsense:").message.startswith("unknown key 'nonsense'")
    (problem,) = in_scheduler("  classes: {bulk: {nonsense: }}").problems
    assert problem.path.endswith("bulk.nonsense")


def test_every_problem_at_once_with_line_and_column():
    """W14 and promises §3: the original ignores unknown keys and tells one error per restart."""
    loaded = read(
        "listen: 8080\n"
        "amin: {}\n"
        "strict: yes\n"
        "upstreams:\n"
        '  - {url: "ftp://x", capacity: -1}\n'
        "priority_scheduler:\n"
        "  enabled: true\n"
        "  default_max_class: no\n"
        "  classes:\n"
        "    interactve: {}\n"
        "    bulk: {queue_timeout: 0, quue_size: 3}\n"
        '  tenant_policies: {acme: {}, "auth:x": {weight: .nan}}\n'
    )
    assert [(p.line, p.column, p.path) for p in loaded.problems] == [
        (1, 1, "listen"),
        (2, 1, "amin"),
        (3, 1, "strict"),
        (5, 6, "upstreams[0].url"),
        (5, 22, "upstreams[0].capacity"),
        (8, 3, "priority_scheduler.default_max_class"),
        (10, 5, "priority_scheduler.classes.interactve"),
        (11, 12, "priority_scheduler.classes.bulk.queue_timeout"),
        (11, 30, "priority_scheduler.classes.bulk.quue_size"),
        (12, 21, "priority_scheduler.tenant_policies.acme"),
        (12, 42, 'priority_scheduler.tenant_policies["auth:x"].weight'),
    ]
    assert [problem.section for problem in loaded.fatal] == [
        "listen",
        "amin",
        "strict",
        "upstreams",
        "upstreams",
    ]
    assert loaded.lines[1] == "gateway.yaml:2:1 amin: unknown key 'amin'; did you mean admin?"
    assert loaded.settings == Settings()


def test_what_is_right_stays_when_the_scheduler_is_wrong():
    loaded = read("listen: :80\nstrict: true\npriority_scheduler: {enabled: true, classes: 3}")
    assert not loaded.fatal
    assert loaded.settings == Settings(listen=":80", strict=True)
    assert not loaded.settings.priority_scheduler.enabled


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("capacty: 3", "did you mean capacity?"),
        ("classes: {}\nlisten: :80", "classes belongs in priority_scheduler"),
        ("token: x", "token belongs in admin"),
        ("fallback: {pool_by: model}", "pool_by belongs in the top level"),
        ("upstreams: [{url: 'http://a', model: x}]", "did you mean models?"),
        ("upstreams: [{url: 'http://a', max_clas: x}]", "did you mean max_class, which belongs in"),
        ("xyzzy: 1", "valid keys are listen, admin"),
        ("LISTEN: 1", "did you mean listen?"),
        ("priority_scheduler: {classes: {bulk: {timeout: 1}}}", "did you mean queue_timeout? "),
        ("priority_scheduler: {classes: {no: {}}}", "unknown class 'no'; the classes are bulk"),
        ("priority_scheduler: {classes: {Bulk: {}}}", "did you mean bulk?"),
        ("priority_scheduler: {default_max_class: sytem}", "did you mean system?"),
        (f"{'x' * 1000}: 1", "unknown key 'xxx"),
        ('"\\e[31m": 1', "unknown key '\\x1b[31m'"),
    ],
)
def test_unknown_names(text, says):
    message = only(text).message
    assert says in message
    assert message.isprintable()
    assert len(message) < 400


def test_duplicates_in_the_scheduler_are_not_fatal_elsewhere_they_are():
    loaded = in_scheduler("  enabled: false\n")
    assert loaded.problems[0].path == "priority_scheduler.enabled"
    assert not loaded.fatal
    assert not loaded.settings.priority_scheduler.enabled
    assert read("strict: true\nstrict: true").fatal


def test_a_flood_of_problems_is_cut_and_counted():
    text = "listen: :80\n" + "".join(f"unknown{n}: 1\n" for n in range(500))
    loaded = read(text)
    assert len(loaded.problems) == loading.MOST_PROBLEMS
    assert "and 400 more problems" in loaded.problems[-1].message
    body = "".join(f"    unknown{n}: {{}}\n" for n in range(500))
    loaded = in_scheduler("  classes:\n" + body)
    assert len(loaded.problems) == loading.MOST_PROBLEMS
    assert not loaded.fatal
    assert read("priority_scheduler:\n  classes:\n" + body + "zzz: 1\n").fatal


SECRETS = [
    "admin: {token: 12345678}",
    "admin: [token: 12345678]",
    "tenants: {api_keys: [{sha256: '12345678', tenant: a}]}",
    "tenants: {api_keys: ['12345678']}",
    "tenants: {api_keys: '12345678'}",
    "upstreams: [{url: 'http://u:12345678@h'}]",
    "upstreams: [{url: 'ftp://u:12345678@h'}]",
    "upstreams: [{url: 'http://h/?key=12345678'}]",
    "upstreams: [{url: 'http://u:a12345678/x@h'}]",
    "upstreams: [{url: 'http://u:12345678\u2100@h'}]",
    "'12345678 in a file that is no configuration'",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_not_told(text):
    loaded = read(text)
    assert loaded.problems
    assert "12345678" not in "".join(loaded.lines)


@pytest.mark.parametrize(
    "host", ["a..b", ".example", "a" * 64 + ".example", "\u00e9" * 60 + ".com"]
)
def test_a_host_that_no_name_server_can_be_asked_for_is_refused(host):
    (problem,) = read(f"upstreams: [{{url: 'http://{host}:9001'}}]").fatal
    assert problem.path == "upstreams[0].url"
    assert "1 to 63" in problem.message


@pytest.mark.parametrize(
    "host", ["a_b.internal", "example.", "127.0.0.1", "[::1]", "b\u00fccher.example", "a" * 63]
)
def test_other_hosts_are_not(host):
    assert not read(f"upstreams: [{{url: 'http://{host}:9001'}}]").problems


def test_the_hash_of_nothing_is_no_key():
    loaded = read(f"tenants: {{api_keys: [{{sha256: {sha256(b'').hexdigest()}, tenant: a}}]}}")
    (problem,) = loaded.fatal
    assert "may not be the hash of a blank text" in problem.message


def test_a_secret_is_not_in_what_is_shown_of_settings():
    assert "s3cret" not in repr(read("admin: {token: s3cret}"))


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:81", ":81", "[::]:81", "10.0.0.7:81", "example.org:81"]
)
def test_an_admin_port_off_loopback_needs_a_token(listen):
    loaded = read(f"admin:\n  listen: '{listen}'\n")
    (problem,) = loaded.fatal
    assert (problem.line, problem.path) == (1, "admin")
    assert "token" in problem.message
    assert loaded.settings.admin.listen == "127.0.0.1:8081"
    assert not read(f"admin: {{listen: '{listen}', token: s3cret}}").problems


@pytest.mark.parametrize("listen", ["127.0.0.1:81", "127.9.9.9:81", "[::1]:81", "localhost:81"])
def test_an_admin_port_on_loopback_needs_none(listen):
    assert not read(f"admin: {{listen: '{listen}'}}").problems


@pytest.mark.parametrize(
    "listen",
    ["80", "a:b", "h:", "h:-1", "h:65536", "::1:80", "[x]:80", "a b:80", "h:٣", "h:" + "9" * 5000],
)
def test_addresses_that_are_refused(listen):
    assert only(f"listen: '{listen}'").path == "listen"


def test_warnings_say_what_is_hardly_meant():
    def warned(body: str) -> str:
        loaded = in_scheduler(body)
        assert not loaded.problems
        return "\n".join(loaded.warnings)

    text = warned("")
    assert "class interactive reserves slots but no tenant can reach it" in text
    assert "class system reserves slots" in text
    text = warned("  default_max_class: interactive")
    assert "class interactive" not in text
    assert "class system" in text
    assert not warned('  tenant_policies: {"auth:ops": {max_class: system}}')
    text = warned("  default_max_class: system")
    assert "means interactive" in text
    assert "class system reserves" in text
    assert "class bulk: starvation_threshold (120 s) is not below queue_timeout (120 s)" in warned(
        "  classes: {bulk: {queue_timeout: 2m}}"
    )
    assert "starvation" not in warned("  classes: {bulk: {queue_timeout: 2m, queue_size: 0}}")
    assert read("priority_scheduler: {default_max_class: system}").warnings == ()


def test_mappings_are_read_by_the_same_rules():
    loaded = load(
        {"capacity": 64, "listen": 5, "fallback": {"queue_timeout": timedelta(seconds=3)}}
    )
    assert loaded.lines == ("configuration listen: must be text; got 5; put it in quotes",)
    assert (loaded.settings.capacity, loaded.settings.fallback.queue_timeout) == (64, 3.0)
    assert load({"classes": {}}).settings.priority_scheduler.enabled
    assert load(None)[:2] == (Settings(), ())
    part = PrioritySettings(enabled=True, reservations_exceed="fallback")
    assert load({"priority_scheduler": part}).settings.priority_scheduler == part
    assert load({"capacity": 9, "priority_scheduler": part}).problems


def test_settings_made_by_hand_are_judged_too():
    settings = Settings(listen=":80")
    assert load(settings)[:2] == (settings, ())
    given = PrioritySettings(enabled=True, reservations_exceed="fallback")
    loaded = load(Settings(capacity=100, priority_scheduler=given))
    assert not loaded.fatal
    assert loaded.settings == Settings(capacity=100)
    assert loaded.problems[0].path == "priority_scheduler.classes"


def test_the_files_of_this_test_pass_the_schema(tmp_path: Path):
    import jsonschema_rs
    from ruamel.yaml import YAML

    schema = json_schema()
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    is_valid = jsonschema_rs.validator_for(schema).is_valid
    example = YAML(typ="safe", pure=True).load(ISSUE)
    assert is_valid(example)
    assert is_valid({"priority_scheduler": YAML(typ="safe", pure=True).load(SMG)})
    refused: list[dict[str, Any]] = [
        {"nonsense": 1},
        {"priority_scheduler": {"classes": {"urgent": {}}}},
        {"priority_scheduler": {"classes": {"bulk": {"queue_timeout": 0}}}},
        {"priority_scheduler": {"classes": {"bulk": {"queue_timeout": "30"}}}},
        {"fallback": {"queue_timeout": True}},
        {"strict": "yes"},
    ]
    for wrong in refused:
        assert not is_valid(wrong)
        assert load(wrong).problems


def test_settings_made_by_hand_may_have_upstreams():
    upstream = Upstream(url="http://127.0.0.1:9001", capacity=4)
    assert load(Settings(upstreams=[upstream])).settings.upstreams == [upstream]
    enabled = PrioritySettings(enabled=True, reservations_exceed="fallback")
    refused = load(Settings(upstreams=[upstream], priority_scheduler=enabled))
    assert len(refused.problems) == 1
    assert not refused.settings.priority_scheduler.enabled

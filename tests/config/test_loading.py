"""Configurations are read strictly, and every mistake is explained with its place."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.config import Config, InvalidConfig, MachineFacts, ScheduleConfig, load, loads
from agentenv.errors import ConfigError, NotFound
from agentenv.paths import SERVER_VARIABLE

MACHINE = MachineFacts(cores=4, memory=16 * 10**9)

SAMPLE_A = """\
environment:
  name: "basic_rl_env"
  resources:
    memory: "4GB"
    cpu: 2
    storage: "20GB"
  network:
    enabled: true
    ports: [8080, 8081]
training:
  algorithm: "PPO"
  max_steps: 1000000
  batch_size: 1024
"""

SAMPLE_D = """\
distributed_training:
  enabled: true
  strategy: "model_parallel"
  nodes:
    - name: "node1"
      resources: {memory: "64GB", cpu: 16, gpu: 2}
    - name: "node2"
      resources: {memory: "64GB", cpu: 16, gpu: 2}
"""


def problems(text: str, **options: object) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        loads(text, name="c.yaml", machine=MACHINE, **options)  # type: ignore[arg-type]
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def in_environment(lines: str) -> str:
    return "environment:\n" + "".join(f"  {line}\n" for line in lines.splitlines())


def test_an_environment_and_its_training(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(SAMPLE_A)
    config = load(str(file), machine=MACHINE)
    resources = config.environment.resources
    assert (config.environment.name, config.environment.image, config.environment.isolation) == ("basic_rl_env", None, "auto")
    assert (resources.memory, resources.cpu, resources.storage, resources.pids) == (4 * 10**9, 2.0, 20 * 10**9, 4096)
    assert (config.environment.network.enabled, config.environment.network.ports) == (True, (8080, 8081))
    assert config.training is not None
    assert (config.training.algorithm, config.training.max_steps, config.training.batch_size) == ("PPO", 1_000_000, 1024)
    assert config.distributed_training is None


def test_a_distributed_training_on_larger_machines_than_this() -> None:
    config = loads(SAMPLE_D, machine=MACHINE)
    distributed = config.distributed_training
    assert distributed is not None
    assert (distributed.enabled, distributed.strategy) == (True, "model_parallel")
    assert [(node.name, node.resources.memory, node.resources.cpu, node.resources.gpu) for node in distributed.nodes] == [
        ("node1", 64 * 10**9, 16.0, 2),
        ("node2", 64 * 10**9, 16.0, 2),
    ]
    assert config.environment.name == "basic_rl_env"


def test_a_mapping_is_as_good_as_a_file() -> None:
    config = load({"environment": {"timeouts": {"startup": "1m30s", "step": 2}}}, machine=MACHINE)
    assert (config.environment.timeouts.startup, config.environment.timeouts.step) == (90.0, 2.0)
    assert load(config) is config


def test_everything_wrong_is_reported_at_once_in_the_order_of_lines() -> None:
    text = """\
environment:
  nmae: x
  resources: {memory: "4G", cpu: 64, gpu: 1}
  network:
    enabled: yes
    ports: [8080, 70000]
training:
  algorithm: PPO
  max_steps: many
  batch_size: 5
  batch_size: 6
"""
    assert problems(text) == [
        "c.yaml:2: environment.nmae: is no known key. Did you mean `name`?",
        "c.yaml:3: environment.resources.cpu: asks for 64 cores, but this machine has 4. Write 4 or less.",
        "c.yaml:3: environment.resources.memory: '4G' has the unknown unit 'G'. "
        "Write for example 4GB; the units are B, KB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB, EiB.",
        "c.yaml:3: environment.resources.gpu: is no known key here. It belongs under `distributed_training.nodes.resources`.",
        "c.yaml:5: environment.network.enabled: must be true or false, not the text 'yes'. Write for example `enabled: true`.",
        "c.yaml:6: environment.network.ports[1]: must be less than or equal to 65535, not 70000. Write for example `ports: [8080, 8081]`.",
        "c.yaml:9: training.max_steps: must be a whole number, not the text 'many'. Write for example `max_steps: 1000000`.",
        "c.yaml:11: training.batch_size: stands here a second time; line 10 has it already. Keep one of the two.",
    ]


def test_the_error_carries_file_line_and_key() -> None:
    with pytest.raises(ConfigError) as caught:
        loads("environment: {name: ''}", name="c.yaml", machine=MACHINE)
    assert (caught.value.file, caught.value.line, caught.value.key) == ("c.yaml", 1, "environment.name")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("network: {ports: [80, 80]}", "port 80 stands there twice. Write each port once."),
        (
            "network: {enabled: true, allow: [1.2.3.4/8]}",
            "'1.2.3.4/8' is no range, since its address lies inside of it. Did you mean 1.0.0.0/8?",
        ),
        ("network: {enabled: true, allow: [127.0.0.1]}", "an address that nothing outside of a sandbox has"),
        ("network: {enabled: true, deny: ['https://x.org']}", "'https://x.org' is a URL. Write its host alone, as in example.com."),
        ("network: {enabled: true, deny: example.com}", "must be a list, not the text 'example.com'."),
        (
            "network: {enabled: true, bandwidth: {up: 3Mb}}",
            "'3Mb' is not a rate. Write bytes or bits a second, such as 10MB/s or 100Mbit/s.",
        ),
        ("network: {allow: [example.com]}", "rules for a network that is not enabled. Write `enabled: true` with them."),
        ("network: {ports: [0]}", "must be greater than or equal to 1, not 0."),
        ("network: {ports: 8080}", "must be a list, not 8080. Write for example `ports: [8080, 8081]`."),
        ("resources: {memory: 17GB}", "asks for 17 GB, but this machine has 16 GB. Write 15258MiB or less."),
        ("resources: {memory: 4}", "4 bytes are too few for any process. Write a size of 4MiB or more, with its unit, such as 512MiB."),
        (
            "resources: {disk_read: 3Mb}",
            "'3Mb' is not a rate. Write bytes or bits a second, such as 10MB/s or 100Mbit/s.",
        ),
        ("resources: {disk_iops: 0}", "must be greater than 0, not 0. Write for example `disk_iops: 5000`."),
        ("resources: {cpu: 0}", "must be greater than 0, not 0. Write for example `cpu: 2`."),
        ("resources: {cpu: .inf}", "must be a finite number, not inf."),
        ("resources: {cpu: true}", "must be a number, not true."),
        (
            "resources: 4",
            "must be a section of keys and values, not 4. Its keys are cpu, memory, storage, pids, disk_read, disk_write, disk_iops.",
        ),
        ("timeouts: {step: 5x}", "'5x' has the unknown unit 'x'. Write for example 5s; the units are ms, s, m, h, d."),
        ("timeouts: {step: 0}", "0 seconds leave no time at all. Write a duration such as 30s."),
        ("env: {PORT: 8080}", 'must be text, not 8080. Put it in quotes: PORT: "8080".'),
        ("env: {DEBUG: true}", 'must be text, not true. Put it in quotes: DEBUG: "true".'),
        ("env: {'A-B': x}", "'A-B' is no name of an environment variable. Use letters, digits and _."),
        ("options: {size: .nan}", "nan in 'size' is no finite number. Write a finite one."),
        ("name: [a]", "must be text, not a list. Write for example `name: basic_rl_env`."),
        ("frobnicate: 1", "is no known key. Known here: name, image, isolation, server, resources, network, env, timeouts, options."),
    ],
)
def test_what_would_be_right(lines: str, expected: str) -> None:
    (problem,) = problems(in_environment(lines))
    assert problem.startswith("c.yaml:2: environment.")
    assert expected in problem


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ("{algorithm: PPO}", "training.max_steps: is missing. Write for example `max_steps: 1000000`."),
        ("{algorithm: PPO, max_steps: 1.5}", "must be a whole number, not 1.5."),
        ("{algorithm: PPO, max_steps: 1, learning_rate: fast}", "learning_rate: must be a number, not the text 'fast'."),
        ("{algorithm: PPO, max_steps: 1, learning_rate: -1}", "learning_rate: must be greater than 0, not -1."),
        (
            "{algorithm: PPO, max_steps: 1, learning_rate: {schedule: linaer, initial: 1}}",
            "learning_rate.schedule: must be one of constant, linear, cosine, not the text 'linaer'. Did you mean `linear`?",
        ),
        ("{algorithm: PPO, max_steps: 1, learning_rate: {schedule: linear}}", "learning_rate.initial: is missing."),
        (
            "{algorithm: PPO, max_steps: 1, learning_rate: {schedule: linear, initial: 1, warmup: 1.5}}",
            "learning_rate.warmup: 1.5 is neither a fraction nor a number of steps.",
        ),
        ("{algorithm: PPO, max_steps: 1, seed: 4294967296}", "seed: must be less than 4294967296"),
    ],
)
def test_training(training: str, expected: str) -> None:
    (problem,) = problems(f"training: {training}\n")
    assert expected in problem


def test_nodes_have_names_of_their_own() -> None:
    (problem,) = problems("distributed_training: {nodes: [{name: a}, {name: a}]}")
    assert "two nodes are called 'a'" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml:1: is empty."),
        ("# nothing\n", "c.yaml:1: is empty."),
        ("- a\n- b\n", "c.yaml:1: must be a mapping of sections at its top, not a list."),
        ("environment:\n\tname: x\n", "c.yaml:2: a tab stands where YAML wants spaces. Indent with spaces."),
        ("environment: {name: x\n", "c.yaml:2: is not YAML"),
        ("environment: 'x\n", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
        ("environment: !!python/object:os.system {}\n", "c.yaml:1: is not YAML"),
        ("environment: &a {options: *a}\n", "an alias refers to what contains it."),
        ("environment: {1: x}\n", "the key 1 is not text."),
        ("environment: {[a]: x}\n", "the key a list or mapping is not text."),
        ("a: \x00", "is not YAML"),
        ("[" * 5000, "is nested too deeply."),
    ],
)
def test_what_is_no_configuration_at_all(text: str, expected: str) -> None:
    assert expected in problems(text)[0]


def test_aliases_may_not_stand_for_billions_of_values() -> None:
    rows = ["    a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (problem,) = problems("environment:\n  options:\n" + "\n".join(rows))
    assert "its aliases written out" in problem
    assert loads("environment: {options: {a: &a [1, 2], b: *a}}", machine=MACHINE).environment.options == {"a": [1, 2], "b": [1, 2]}


def test_scalars_follow_yaml_1_2() -> None:
    config = loads(
        in_environment("options: {a: 1e3, b: 3e-4, c: no, d: 1:30, e: 1_000, f: 0o17, g: 0x1F, h: 2020-01-01, i: ~, j: 010}"),
        machine=MACHINE,
    )
    assert config.environment.options == {
        "a": 1000.0,
        "b": 0.0003,
        "c": "no",
        "d": "1:30",
        "e": 1000,
        "f": 15,
        "g": 31,
        "h": "2020-01-01",
        "i": None,
        "j": "010",
    }


def test_a_whole_number_may_be_written_in_any_way() -> None:
    config = loads("training: {algorithm: PPO, max_steps: 1e6, batch_size: 1_024}", machine=MACHINE)
    assert config.training is not None
    assert (config.training.max_steps, config.training.batch_size) == (1_000_000, 1024)
    assert isinstance(config.training.max_steps, int)


def test_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "task.py").touch()
    file = tmp_path / "config.yaml"
    file.write_text(in_environment("name: task.py:Task\nimage: dir:root"))
    environment = load(file, machine=MACHINE).environment
    assert environment.name == f"{tmp_path}/task.py:Task"
    assert environment.image == f"dir:{tmp_path}/root"


def test_missing_files_name_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "task.py").touch()
    (tmp_path / "config.yml").touch()
    (problem,) = problems(in_environment("name: tusk.py:Task"), folder=tmp_path)
    assert problem == f"c.yaml:2: environment.name: there is no file {tmp_path}/tusk.py. Did you mean {tmp_path}/task.py?"
    assert "there is no directory" in problems(in_environment("image: dir:nowhere"), folder=tmp_path)[0]
    assert "there is no file" in problems(in_environment("image: tar:x.tar"), folder=tmp_path)[0]
    with pytest.raises(InvalidConfig, match=r"there is no such file\. Did you mean .*config\.yml\?"):
        load(tmp_path / "config.yaml")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        load(tmp_path)
    file = tmp_path / "c.yaml"
    file.write_bytes(b"environment:\n  name: \xff\n")
    with pytest.raises(InvalidConfig, match=r"c\.yaml:2: is not UTF-8"):
        load(file)
    file.write_bytes(b"#" * 2_000_000)
    with pytest.raises(InvalidConfig, match="at most 1000000"):
        load(file)


def test_training_can_be_changed_afterwards() -> None:
    config = loads(SAMPLE_A, machine=MACHINE)
    changed = config.with_training(max_steps=10, seed=None, num_envs=2)
    assert changed.training is not None
    assert config.training is not None
    assert (changed.training.max_steps, changed.training.num_envs, changed.training.batch_size) == (10, 2, 1024)
    assert config.training.max_steps == 1_000_000
    with pytest.raises(ConfigError, match=r"training\.max_steps: must be greater than 0, not -1"):
        config.with_training(max_steps=-1)
    with pytest.raises(ConfigError, match="no `training` section"):
        loads(SAMPLE_D, machine=MACHINE).with_training(max_steps=1)


def test_warm_up_is_steps_or_a_fraction() -> None:
    def steps(warmup: float) -> int:
        return ScheduleConfig(schedule="linear", initial=0.1, warmup=warmup).warmup_steps(1000)

    assert [steps(0), steps(50), steps(0.1), steps(5000)] == [0, 50, 100, 1000]


@pytest.mark.parametrize(("named", "variable"), [("http://far:8700", ""), (None, "http://far:8700"), ("http://far:8700", "local")])
def test_limits_of_a_servers_sandboxes_are_not_compared_with_this_machine(
    named: str | None, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, variable)
    resources = {"cpu": 65536, "memory": "900TB"}
    assert load({"environment": {"server": named, "resources": resources}}).environment.resources.cpu == 65536
    monkeypatch.setenv(SERVER_VARIABLE, "local")
    with pytest.raises(InvalidConfig, match="but this machine has"):
        load({"environment": {"resources": resources}})


def test_names_are_looked_up_where_they_are_registered(tmp_path: Path) -> None:
    def known(name: str) -> None:
        if name != "PPO":
            raise NotFound(f"there is no algorithm {name!r}.", remedy="Did you mean PPO?")

    file = tmp_path / "c.yaml"
    file.write_text("training:\n  max_steps: 1\n  algorithm: PPP\n")
    with pytest.raises(InvalidConfig) as caught:
        load(file, lookups={("training", "algorithm"): known})
    assert str(caught.value) == f"{file}:3: training.algorithm: there is no algorithm 'PPP'. Did you mean PPO?"
    assert load({"training": {"algorithm": "PPO", "max_steps": 1}}, lookups={("training", "algorithm"): known}).training
    assert load({}, lookups={("training", "algorithm"): known}).training is None


sizes = st.integers(4 * 2**20, MACHINE.memory)
names = st.text(min_size=1, max_size=10)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
configurations = st.fixed_dictionaries(
    {},
    optional={
        "environment": st.fixed_dictionaries(
            {},
            optional={
                "resources": st.fixed_dictionaries(
                    {}, optional={"memory": sizes, "cpu": st.floats(0.01, 4), "pids": st.integers(8, 10**6)}
                ),
                "network": st.fixed_dictionaries({"ports": st.lists(st.integers(1, 65535), unique=True, max_size=4)}),
                "options": st.dictionaries(names, plain, max_size=3),
                "env": st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), st.text(max_size=5), max_size=2),
            },
        ),
        "training": st.fixed_dictionaries(
            {"algorithm": names, "max_steps": st.integers(1, 10**9)},
            optional={
                "learning_rate": st.floats(1e-9, 1)
                | st.fixed_dictionaries({"schedule": st.sampled_from(["linear", "cosine"]), "initial": st.floats(1e-9, 1)}),
                "hyperparameters": st.dictionaries(names, plain, max_size=3),
            },
        ),
    },
)


@settings(deadline=None)
@given(configurations)
def test_a_configuration_survives_being_written_and_read(data: dict[str, object]) -> None:
    config = load(data, machine=MACHINE)
    again = load(config.to_dict(), machine=MACHINE)
    assert again == config
    assert again.digest() == config.digest()


def outcome(read: Callable[[], Config]) -> Config | str:
    """The configuration, or the ConfigError's text; any other exception fails the test."""
    try:
        return read()
    except ConfigError as error:
        return str(error)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    assert outcome(lambda: loads(text, machine=MACHINE))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["environment", "training", "distributed_training", "x"]), plain))
def test_any_data_is_a_configuration_or_a_config_error(data: dict[str, object]) -> None:
    assert outcome(lambda: load(data, machine=MACHINE))

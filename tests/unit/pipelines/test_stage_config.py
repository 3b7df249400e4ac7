import os
import re
from pathlib import Path

import pytest
import yaml

from omni_jobs.errors import ConfigError, NotFound
from omni_jobs.pipelines.loader import load_pipeline, load_pipelines, version_order
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.settings import Settings
from tests.stage_configs import with_remote
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import TokenParameters

CONFIGS = Path(__file__).parents[3] / "stage_configs"

GOOD = """\
name: duo
version: "1"
stages:
  one:
    kind: echo
    processor: echo
    produces: bytes
  two:
    kind: echo
    processor: echo
    inputs: {one: bytes}
    produces: text
outputs:
  text: {stage: two}
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "duo.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shares_of_a_shipped_pipeline_s_stages_leave_room_on_the_card_that_they_share() -> None:
    """A tenth is for the contexts, which no share counts. A diffusion stage beside them needs room of its own."""
    for pipeline in load_pipelines(CONFIGS).values():
        shares: dict[str, float] = {}
        for stage in map(pipeline.stage, pipeline.stages):
            share = getattr(stage.engine_settings, "gpu_memory_utilization", None)
            if stage.kind in {"ar", "pooling", "diffusion"}:
                shares[stage.device] = shares.get(stage.device, 0) + (share or 0.1)
        assert all(share <= 0.9 for share in shares.values()), f"{pipeline.name}: {shares}"


def test_the_shipped_pipelines_load() -> None:
    pipelines = load_pipelines(CONFIGS)
    assert {"qwen2_5_omni", "echo"} <= set(pipelines)


def test_modalities_prune_the_graph() -> None:
    omni = load_pipelines(CONFIGS)["qwen2_5_omni"]
    assert [stage.name for stage in omni.stages_for(["text"])] == ["thinker"]
    assert [stage.name for stage in omni.stages_for(["text", "audio"])] == ["thinker", "talker", "code2wav"]
    assert [stage.name for stage in omni.stages_for(["audio"])] == ["thinker", "talker", "code2wav"]


def test_unknown_pipeline_names_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"unknown pipeline 'nope'.*echo"):
        load_pipelines(CONFIGS).named("nope")


def test_the_setting_names_what_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    known = load_pipelines(CONFIGS)
    monkeypatch.setenv("OMNI_JOBS_PIPELINES", " qwen2_5_omni, chat,")
    settings = Settings()
    assert settings.pipelines == ("qwen2_5_omni", "chat")
    assert settings.to_environment()["OMNI_JOBS_PIPELINES"] == "qwen2_5_omni,chat"
    assert list(known.served(settings.pipelines)) == ["qwen2_5_omni", "chat"]
    for unset in ("", " ,"):
        monkeypatch.setenv("OMNI_JOBS_PIPELINES", unset)
        assert Settings().pipelines is None
    assert list(known.served(None)) == list(known)
    with pytest.raises(ConfigError, match=r"no stage config has the name 'nope'; there are: chat, echo") as caught:
        known.served(["echo", "nope"])
    assert caught.value.field == "OMNI_JOBS_PIPELINES"


def test_queues_and_consumers() -> None:
    omni = load_pipelines(CONFIGS)["qwen2_5_omni"]
    assert omni.queue("talker") == "qwen2_5_omni@1.talker"
    assert omni.successors("thinker") == ("talker",)
    assert omni.successors("code2wav") == ()


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    first = load_pipeline(write(tmp_path, GOOD))
    assert first.digest == load_pipeline(write(tmp_path, "# a comment\n" + GOOD)).digest
    assert first.digest != load_pipeline(write(tmp_path, GOOD.replace('"1"', '"2"'))).digest


DECIDES = """\
name: duo
version: "1"
description: d
model: {family: qwen2_5_omni, path: /models/a}
accepts: [text, audio]
voices: [Chelsie]
stages:
  one:
    kind: ar
    component: thinker
    processor: chat
    produces: hidden_states
    device: cuda
    slots: 8
    time_limit_s: 60
    queue_limit_s: 60
    retries: {storage: 1}
    max_payload_bytes: 1000
    engine: {dtype: bfloat16, max_model_len: 512, max_num_seqs: 8, max_num_batched_tokens: 512, block_size: 16,
             enforce_eager: true, enable_prefix_caching: true, gpu_memory_utilization: 0.5,
             kv_cache_memory_bytes: 1048576, tensor_parallel_size: 1, skip_mm_profiling: true,
             limit_mm_per_prompt: {audio: 1}, cpu: {dtype: float32, max_num_seqs: 4}}
    parameters: {temperature: 0.5, max_tokens: 7}
  two:
    kind: ar
    component: talker
    processor: thinker2talker
    inputs: {one: hidden_states}
    produces: codes
  three:
    kind: diffusion
    component: code2wav
    processor: talker2code2wav
    inputs: {two: codes}
    produces: waveform
outputs:
  text: {stage: one}
  audio: {stage: three}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: duo", "name: trio"),
        ('version: "1"', 'version: "2"'),
        ("accepts: [text, audio]", "accepts: [text]"),
        ("voices: [Chelsie]", "voices: [Chelsie, Ethan]"),
        ("processor: chat", "processor: echo"),
        ("dtype: bfloat16", "dtype: float16"),
        ("dtype: float32", "dtype: float16"),
        ("max_model_len: 512", "max_model_len: 1024"),
        ("temperature: 0.5", "temperature: 0.6"),
        ("max_tokens: 7", "max_tokens: 8"),
        ("  text: {stage: one}\n", ""),
    ],
)
def test_what_decides_a_result_decides_the_digest(tmp_path: Path, old: str, new: str) -> None:
    assert old in DECIDES
    changed = Pipeline.model_validate(yaml.safe_load(DECIDES.replace(old, new, 1)))
    assert changed.digest != Pipeline.model_validate(yaml.safe_load(DECIDES)).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("description: d\n", ""),
        ("/models/a", "/mnt/b"),
        ("accepts: [text, audio]", "accepts: [audio, text]"),
        ("device: cuda", "device: cpu"),
        ("slots: 8", "slots: 9"),
        ("slots: 8", "slots: 8\n    slots_for_high: 7"),
        ("time_limit_s: 60", "time_limit_s: 61"),
        ("queue_limit_s: 60", "queue_limit_s: 61"),
        ("retries: {storage: 1}", "retries: {storage: 2}"),
        ("max_payload_bytes: 1000", "max_payload_bytes: 1001"),
        ("slots: 8", "slots: 8\n    limits: {max_tokens: {at_most: 100}}"),
        ("max_num_seqs: 8", "max_num_seqs: 9"),
        ("max_num_batched_tokens: 512", "max_num_batched_tokens: 600"),
        ("block_size: 16", "block_size: 32"),
        ("enforce_eager: true", "enforce_eager: false"),
        ("enable_prefix_caching: true", "enable_prefix_caching: false"),
        ("gpu_memory_utilization: 0.5", "gpu_memory_utilization: 0.4"),
        ("kv_cache_memory_bytes: 1048576", "kv_cache_memory_bytes: 2097152"),
        ("tensor_parallel_size: 1", "tensor_parallel_size: 2"),
        ("skip_mm_profiling: true", "skip_mm_profiling: false"),
        ("{audio: 1}", "{audio: 2}"),
        ("max_num_seqs: 4", "max_num_seqs: 5"),
        ("cpu: {dtype: float32, max_num_seqs: 4}", "cpu: {dtype: float32}"),
        ("max_tokens: 7}", "max_tokens: 7, top_p: 1.0}"),
        ("parameters: {temperature: 0.5, max_tokens: 7}", "parameters: {max_tokens: 7, temperature: 0.5}"),
    ],
)
def test_what_an_operator_tunes_while_jobs_wait_leaves_the_digest_alone(tmp_path: Path, old: str, new: str) -> None:
    assert old in DECIDES
    changed = Pipeline.model_validate(yaml.safe_load(DECIDES.replace(old, new, 1)))
    assert changed.digest == Pipeline.model_validate(yaml.safe_load(DECIDES)).digest


def test_the_order_in_a_file_leaves_the_digest_alone() -> None:
    data = yaml.safe_load(DECIDES)
    turned = dict(reversed(data.items())) | {"stages": dict(reversed(data["stages"].items()))}
    assert Pipeline.model_validate(turned).digest == Pipeline.model_validate(data).digest


def test_every_field_is_in_the_digest_or_left_out_on_purpose() -> None:
    """Who adds a field decides here whether a worker with another value of it may take a job."""
    assert set(Pipeline.model_fields) - {"description"} == {
        *("name", "version", "model", "accepts", "voices", "stages", "outputs"),
    }
    tuned = {"device", "slots", "slots_for_high", "time_limit_s", "queue_limit_s", "retries", "max_payload_bytes"}
    tuned |= {"limits"}
    assert set(StageConfig.model_fields) - tuned == {
        *("name", "kind", "model", "component", "processor", "inputs", "produces", "engine", "parameters"),
    }


def test_the_digest_of_a_file_is_the_same_in_every_build() -> None:
    """Jobs that wait over an upgrade are taken by the new build's workers."""
    assert Pipeline.model_validate(yaml.safe_load(GOOD)).digest == "02f22939d6e14a93"
    assert Pipeline.model_validate(yaml.safe_load(DECIDES)).digest == "ea29c0b1acb68c0e"


def test_a_pipeline_is_frozen(tmp_path: Path) -> None:
    pipeline: Pipeline = load_pipeline(write(tmp_path, GOOD))
    with pytest.raises(ValueError, match="frozen"):
        pipeline.name = "other"  # type: ignore[misc]


def test_engine_settings_for_the_cpu_override() -> None:
    thinker = load_pipelines(CONFIGS)["qwen2_5_omni"].stage("thinker")
    assert isinstance(thinker.engine_settings, ArEngine)
    on_cpu, on_cuda = (thinker.engine_settings.on(device).vllm_args(device) for device in ("cpu", "cuda"))
    assert on_cpu["dtype"] == "float32"
    assert "dtype" not in on_cuda
    assert on_cpu["max_num_seqs"] == on_cuda["max_num_seqs"] == 32


def test_parameters_merge_over_the_defaults() -> None:
    talker = load_pipelines(CONFIGS)["qwen2_5_omni"].stage("talker")
    merged = talker.parameters_with({"temperature": 0})
    assert isinstance(merged, TokenParameters)
    assert (merged.temperature, merged.top_k) == (0, 40)


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "message"),
    [
        ("version:", "color: red\nversion:", 2, "color", "unknown key"),
        ("    inputs:", "    speed: 3\n    inputs:", 11, "stages.two.speed", "unknown key"),
        ("    produces: bytes", "    produces: smell", 7, "stages.one.produces", "no such flow 'smell'; known: "),
        ("    kind: echo", "    kind: magic", 5, "stages.one.kind", "no such plug-in 'magic' of omni_jobs.runners"),
        ("processor: echo", "processor: os.system", 6, "stages.one.processor", "pattern"),
        ("processor: echo", "processor: nothing", 6, "stages.one.processor", "no input processor 'nothing'"),
        ("{one: bytes}", "{three: bytes}", 11, "stages.two.inputs.three", "no such stage 'three'"),
        ("{one: bytes}", "{one: codes}", 11, "stages.two.inputs.one", "produces bytes, not codes"),
        ("{one: bytes}", "{two: text}", 11, "stages.two.inputs", "cycle: two → two"),
        ("{stage: two}", "{stage: six}", 14, "outputs.text.stage", "no such stage 'six'"),
        ("{stage: two}", "{stage: one}", 14, "outputs.text.stage", "produces bytes, not text"),
        ('version: "1"', 'version: "1"\nname: again', 3, None, "key 'name' twice"),
        ('version: "1"', "version: [", 4, None, "not valid YAML"),
        ("  two:", "    parameters: {heat: 1}\n  two:", 8, "stages.one.parameters.heat", "unknown key"),
        ("  two:", "    slots: 0\n  two:", 8, "stages.one.slots", "greater than or equal to 1"),
        ("  two:", "    slots_for_high: 8\n  two:", 8, "stages.one.slots_for_high", "less than the stage's slots, 8"),
        ("  two:", "    slots_for_high: -1\n  two:", 8, "stages.one.slots_for_high", "greater than or equal to 0"),
        ("  two:", "    name: x\n  two:", 8, "stages.one.name", "unknown key"),
        ("kind: echo", "kind: ar", 5, "stages.one.kind", "needs a model section"),
        ("name: duo", "name: !!python/object/apply:os.system [id]", 1, None, "not valid YAML"),
        ("{one: bytes}", "{}", 4, "stages.one", "no output needs this stage"),
        ('version: "1"', "version: 2026-27-11", 2, None, "not valid YAML: month must be in 1..12"),
        ('version: "1"', "version: 0b__", 2, None, "not valid YAML: invalid literal"),
        ('version: "1"', "version: " + "9" * 6000, 2, None, "not valid YAML: Exceeds the limit"),
        ('version: "1"', "version: \0", None, None, "not valid YAML: unacceptable character"),
        ('version: "1"', "version: " + "[" * 20_000, None, None, "not valid YAML: nested too deeply"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_file_line_and_field(
    tmp_path: Path, old: str, new: str, line: int | None, field: str | None, message: str
) -> None:
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        load_pipeline(path)
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(path), line, field)


def test_a_date_is_a_date_though_a_library_reads_it_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lmformatenforcer, which vLLM imports, has it for every SafeLoader of the process."""
    plain = yaml.SafeLoader.yaml_constructors
    monkeypatch.setitem(plain, "tag:yaml.org,2002:timestamp", plain["tag:yaml.org,2002:str"])
    with pytest.raises(ConfigError, match=r"month must be in 1\.\.12"):
        load_pipeline(write(tmp_path, GOOD.replace('"1"', "2026-27-11", 1)))


MANY_MISTAKES = """\
name: duo
version: "1"
colour: red
stages:
  one:
    kind: echo
    processor: nothing
    produces: bytes
    name: one
    slots: 0
    speed: 3
  two:
    kind: echo
    processor: echo
    inputs: {one: codes, six: text}
    produces: text
    slots_for_high: 9
    parameters: {heat: 1, delay_s: -1}
  three:
    kind: magic
    processor: echo
    produces: smell
outputs:
  text: {stage: seven}
  dance: {stage: two}
"""


def test_every_mistake_of_a_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, MANY_MISTAKES)
    with pytest.raises(ConfigError) as caught:
        load_pipeline(path)
    found = {(error.line, error.field) for error in (caught.value, *caught.value.more)}
    assert found == {
        (3, "colour"),
        (7, "stages.one.processor"),
        (9, "stages.one.name"),
        (10, "stages.one.slots"),
        (11, "stages.one.speed"),
        (15, "stages.two.inputs.one"),
        (15, "stages.two.inputs.six"),
        (17, "stages.two.slots_for_high"),
        (18, "stages.two.parameters.heat"),
        (18, "stages.two.parameters.delay_s"),
        (20, "stages.three.kind"),
        (22, "stages.three.produces"),
        (24, "outputs.text.stage"),
        (25, "outputs.dance"),
    }
    assert {error.file for error in (caught.value, *caught.value.more)} == {str(path)}


def test_every_key_that_is_given_twice_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('version: "1"', 'version: "1"\nname: again\n3: x\nversion: "2"'))
    with pytest.raises(ConfigError) as caught:
        load_pipeline(path)
    said = [(error.line, error.message) for error in (caught.value, *caught.value.more)]
    assert said == [
        (3, "not valid YAML: key 'name' twice"),
        (4, "not valid YAML: key 3 is not a string"),
        (5, "not valid YAML: key 'version' twice"),
    ]


def test_one_mistake_is_named_once(tmp_path: Path) -> None:
    """What only follows from a mistake is none of its own."""
    for old, new in (("kind: echo", "kind: magic"), ("{one: bytes}", "{one: codes}")):
        with pytest.raises(ConfigError) as caught:
            load_pipeline(write(tmp_path, GOOD.replace(old, new, 1)))
        assert caught.value.more == (), [str(error) for error in caught.value.more]


ONE_AR = """\
name: duo
version: "1"
stages:
  one:
    kind: ar
    processor: chat
    produces: text
outputs:
  text: {stage: one}
model: {family: causal_lm}
"""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine: {spec_method: ngram}", "it is speculative_config's: give its method"),
        ("engine: {cpu: {data_parallel_size: 2}}", "data parallelism is not supported: start more workers"),
        ("parameters: {n: 2}", "several answers are not supported: a job has one"),
        ("parameters: {best_of: 2}", "several answers are not supported: a job has one"),
    ],
)
def test_what_is_not_supported_is_said_with_the_reason(tmp_path: Path, setting: str, message: str) -> None:
    path = write(tmp_path, ONE_AR.replace("outputs:", f"    {setting}\noutputs:"))
    with pytest.raises(ConfigError, match=message) as caught:
        load_pipeline(path)
    field = ".".join(re.findall(r"[a-z_]+(?=:)", setting))
    assert (caught.value.file, caught.value.line, caught.value.field) == (str(path), 8, f"stages.one.{field}")


def test_an_empty_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="empty"):
        load_pipeline(write(tmp_path, ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_pipeline(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_pipeline(tmp_path / "latin.yaml")


def test_two_files_of_one_version_are_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "other.yaml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is version 1 of \w+ already: raise the version of one") as caught:
        load_pipelines(tmp_path)
    assert caught.value.field == "version"


def test_several_versions_stand_beside_each_other(tmp_path: Path) -> None:
    for version in ("10", "9", "2.1"):
        (tmp_path / f"v{version}.yaml").write_text(GOOD.replace('"1"', f'"{version}"'), encoding="utf-8")
    known = load_pipelines(tmp_path)
    name = "duo"
    assert set(known) == {name, f"{name}@9", f"{name}@2.1"}
    assert [each.version for each in known.versions(name)] == ["10", "9", "2.1"]
    assert known.named(name) is known.named(f"{name}@10") is known[name]
    assert known.find(f"{name}@3") is None
    newest, older = known[name], known[f"{name}@9"]
    stage = next(iter(newest.stages))
    assert [each.queue(stage) for each in (newest, older)] == [f"{name}@10.{stage}", f"{name}@9.{stage}"]
    assert known.queue_aliases == {f"{name}.{each}": f"{name}@10.{each}" for each in newest.stages}
    assert len({each.digest for each in known.values()}) == 3
    assert known.of(older.id) is older
    assert known.of(older.id._replace(digest="0" * 16)) is None
    assert known.version_or_newest(name, "9") is older
    assert known.version_or_newest(name, "8") is newest
    assert list(known.served([name])) == [name, f"{name}@9", f"{name}@2.1"]
    alone = known.served([f"{name}@9"])
    assert list(alone) == [name], "no newer version stands beside it"
    assert alone.named(name) is older, "the newest that is served"
    with pytest.raises(NotFound, match=f"unknown pipeline '{name}@8'"):
        known.named(f"{name}@8")


@pytest.mark.parametrize(
    "versions",
    [
        ["1", "2", "10"],
        ["1.9", "1.10"],
        ["1", "1.0", "1.0.1"],
        ["2024-05-01", "2024-11-01"],
        ["a1", "a2", "a10"],
        ["2.0-rc1", "2.0-rc2", "2.0", "2.0.1"],
        ["1-0", "1.0"],
    ],
)
def test_versions_are_ordered_by_their_numbers(versions: list[str]) -> None:
    shuffled = versions[::-1]
    assert sorted(shuffled, key=version_order) == versions


def test_a_directory_that_gives_no_files_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    assert len(load_pipelines(tmp_path)) == 0
    (tmp_path / "file").touch()
    (tmp_path / "round").symlink_to(tmp_path / "round")
    cannot = "the directory cannot be read: "
    for name, message in (("gone", "no such"), ("file", "no such"), ("round", cannot), ("x" * 300, cannot)):
        with pytest.raises(ConfigError, match=message):
            load_pipelines(tmp_path / name)
    (closed := tmp_path / "closed").mkdir(mode=0)
    if not os.access(closed, os.R_OK):  # root may read it
        with pytest.raises(ConfigError, match=cannot):
            load_pipelines(closed)


def test_a_stage_has_the_parameters_that_its_engine_settings_let_it_have(tmp_path: Path) -> None:
    stages = with_remote(tmp_path)["remote"].stages
    names = ("language", "words", "subtitles", "temperature", "speed", "instructions", "logprobs", "nothing")
    has = {stage: {name for name in names if config.has_parameter(name)} for stage, config in stages.items()}
    assert has == {"hear": {"language", "words", "subtitles", "temperature"}, "voice": {"speed", "instructions"}}

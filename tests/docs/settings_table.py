"""The table of docs/settings.md, made from ``Settings`` and its comments. ``scripts/settings-table`` writes it."""

import argparse
import ast
import re
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from omni_jobs.servers import Server
from omni_jobs.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "omni_jobs" / "settings.py"
PAGE = ROOT / "docs" / "settings.md"
BEGIN, END = "<!-- scripts/settings-table writes from here -->\n", "<!-- to here -->\n"

_BOUNDS_OF_SOUND_AND_PICTURES = """
    max_audio_s max_audio_samples max_audio_channels max_audio_rate max_video_s max_video_frames max_image_pixels
    max_image_scans max_scanned_pixels decoders decoders_waiting decoders_wait_s decoder_memory_bytes
"""
READERS: Final = {
    process: frozenset(names.split())
    for process, names in {
        "api": f"""
            data_dir database_url broker_url broker_key_prefix storage_url storage_sync s3_endpoint_url
            s3_public_endpoint_url s3_region download_url_s stage_configs pipelines models api_host api_port
            tls_certificate tls_key metrics_port metrics_host beat_file root_path auth tenant_header public_url
            trusted_proxies tracing log keep_artifacts_s
            max_queued_jobs max_queued_jobs_per_tenant min_free_bytes max_body_bytes max_text_bytes
            max_bulk_answer_bytes max_messages max_media_parts {_BOUNDS_OF_SOUND_AND_PICTURES} probe_limit_s fetch
            fetch_hosts max_fetched_bytes fetch_limit_s max_fetches max_fetches_per_tenant allowed_hosts max_head_bytes
            max_headers max_connections max_waits max_waits_per_tenant wait_limit_s max_held_body_bytes head_limit_s
            body_limit_s silence_limit_s
        """,
        "rescuer": """
            data_dir database_url broker_url broker_key_prefix storage_url storage_sync s3_endpoint_url s3_region
            stage_configs metrics_port metrics_host beat_file tracing log lease_s rescue_every_s keep_payloads_s
            keep_inputs_s keep_artifacts_s keep_events_s keep_jobs_s keep_usage_s keep_audit_s prune_every_s
            orphan_after_s sweep_every_s
        """,
        "worker": f"""
            data_dir database_url broker_url broker_key_prefix storage_url storage_sync s3_endpoint_url s3_region
            stage_configs models servers spool_dir load_locks_dir metrics_port metrics_host beat_file tracing log device
            host_name gpu_memory_utilization kv_cache_memory_bytes lease_s heartbeat_s drain_s poll_s progress_every_s
            watched_every_s cancel_check_s stop_limit_s engine_stall_s load_limit_s stall_after_s task_events
            keep_inputs_s keep_artifacts_s keep_jobs_s min_free_bytes capture_bytes max_body_bytes
            {_BOUNDS_OF_SOUND_AND_PICTURES} decode_limit_s fetch fetch_hosts job_ids_in_pictures inline_payload_bytes
        """,
        "up": """
            data_dir database_url storage_url storage_sync s3_endpoint_url s3_region stage_configs pipelines models
            spool_dir load_locks_dir api_host api_port tls_certificate metrics_port auth tenant_header log load_limit_s
            stall_after_s
        """,
        "commands": """
            data_dir database_url broker_url broker_key_prefix storage_url storage_sync s3_endpoint_url s3_region
            stage_configs pipelines models device gpu_memory_utilization min_free_bytes tls_certificate tls_key
        """,
        "client": "api_key ca_file",
    }.items()
}
"""The settings that each process reads; of those that it runs with ``up``, what ``up`` itself reads."""
_UNITS_BY_NAME: Final = {
    "capture_bytes": "bytes",
    "decoders": "processes",
    "decoders_waiting": "media",
    "gpu_memory_utilization": "share of 1",
    "max_audio_channels": "channels",
    "max_audio_rate": "Hz",
    "max_audio_samples": "samples",
    "max_connections": "connections",
    "max_fetches": "media",
    "max_fetches_per_tenant": "media",
    "max_headers": "headers",
    "max_image_pixels": "pixels",
    "max_image_scans": "scans",
    "max_media_parts": "media",
    "max_messages": "messages",
    "max_queued_jobs": "jobs",
    "max_queued_jobs_per_tenant": "jobs",
    "max_scanned_pixels": "pixels",
    "max_video_frames": "frames",
    "max_waits": "requests",
    "max_waits_per_tenant": "requests",
}
_UNITS_BY_END: Final = {"_s": "seconds", "_bytes": "bytes", "_port": ""}


class Meaning(NamedTuple):
    group: str  # the comment that begins the setting's group
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/settings-table", description="Write the table of docs/settings.md from omni_jobs/settings.py."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is another")
    check = parser.parse_args().check
    written, new = PAGE.read_text(encoding="utf-8"), page()
    if check:
        sys.exit(0 if written == new else "docs/settings.md is stale: run scripts/settings-table")
    PAGE.write_text(new, encoding="utf-8")


def page() -> str:
    """The page with the table as the code has it now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def table() -> str:
    """The table: a row for each setting, in the order of the code. Raises LookupError for one that lacks a part."""
    lines = ["| Variable | Type | Default | Unit | Meaning | Read by |", "|---|---|---|---|---|---|"]
    group = ""
    for name, meaning in meanings(SOURCE.read_text(encoding="utf-8")).items():
        if meaning.group != group:
            group = meaning.group
            lines.append(f"| **{_escaped(group.rstrip('.'))}** | | | | | |")
        field = Settings.model_fields[name]
        cells = (
            f"`{variable(name)}`",
            type_of(name, field),
            default_of(name, field),
            unit_of(name, field),
            meaning_of(meaning.text),
            ", ".join(readers_of(name)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, ""))


def variable(name: str) -> str:
    return f"OMNI_JOBS_{name.upper()}"


def meanings(source: str) -> dict[str, Meaning]:
    """What the comments of ``Settings`` say of each setting. Raises LookupError for a setting without a comment."""
    lines = source.splitlines()
    (settings,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Settings"
    )
    found: dict[str, Meaning] = {}
    group = ""
    seen = settings.body[0].end_lineno or 0  # of the lines, those before
    for node in settings.body[1:]:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            before = "".join(f"{line.strip()}\n" for line in lines[seen : node.lineno - 1])
            *groups, above = [_uncommented(block) for block in before.split("\n\n")]
            group = next((block for block in reversed(groups) if block), group)
            _, _, beside = lines[(node.end_lineno or 0) - 1][node.end_col_offset or 0 :].partition("# ")
            text = f"{above} {beside}".strip()
            if not text:
                raise LookupError(f"omni_jobs/settings.py has no comment on {node.target.id}")
            found[node.target.id] = Meaning(group, text)
        seen = node.end_lineno or 0
    return found


def _uncommented(block: str) -> str:
    return " ".join(line.removeprefix("#").strip() for line in block.splitlines()).strip()


def readers_of(name: str) -> list[str]:
    """The processes that read a setting."""
    found = [process for process, names in READERS.items() if name in names]
    if not found:
        raise LookupError(f"READERS of tests/docs/settings_table.py does not say which process reads {name}")
    return found


def meaning_of(comment: str) -> str:
    """A comment for readers who set variables: these have no None, and names of their own."""
    text = _escaped(re.sub(r"\bNone:", "Unset:", comment))
    names = sorted((name for name in Settings.model_fields if "_" in name), key=len, reverse=True)
    fields_or_name = rf"\\{{.*?\\}}|(?<![\w./])({'|'.join(names)})(?![\w])"  # the fields of a value are no variables
    return re.sub(fields_or_name, lambda found: f"`{variable(found[1])}`" if found[1] else found[0], text)


def _escaped(text: str) -> str:
    return re.sub(r"([|*<>{}])", r"\\\1", text)


def type_of(name: str, field: FieldInfo) -> str:
    """The kind of a variable's value, with its bounds."""
    (kind,) = _kinds(field)
    bounds = {
        key: getattr(item, key) for item in _constraints(field) for key in ("ge", "gt", "le") if hasattr(item, key)
    }
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return "names, as `a,b`"
    if get_origin(kind) is dict:
        return "JSON: name → server" if get_args(kind)[1] is Server else "JSON: name → directory"
    if kind in (int, float):
        return _number("number" if kind is float else "whole number", bounds)
    if name.endswith("_url"):
        return "URL"
    if name.endswith(("_certificate", "_key", "_file")) and kind is Path:
        return "file"
    return {bool: "`true` or `false`", Path: "directory", str: "text", SecretStr: "text"}[kind]


def _members(field: FieldInfo) -> list[Any]:
    """The parts of the annotation ``A | None``, with what is ``Annotated``."""
    annotation = field.annotation
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [part for part in parts if part is not NoneType]


def _kinds(field: FieldInfo) -> list[Any]:
    return [get_args(part)[0] if get_origin(part) is Annotated else part for part in _members(field)]


def _constraints(field: FieldInfo) -> list[Any]:
    found = list(field.metadata)
    for part in _members(field):
        for extra in get_args(part)[1:] if get_origin(part) is Annotated else ():
            found += extra.metadata if isinstance(extra, FieldInfo) else [extra]
    return found


def _number(kind: str, bounds: dict[str, float]) -> str:
    least = f"more than {bounds['gt']}" if "gt" in bounds else f"from {bounds['ge']}"
    most = f" to {bounds['le']}" if "le" in bounds else ""
    return f"{kind}, {least}{most}"


def default_of(name: str, field: FieldInfo) -> str:
    """A default as the variable would give it; empty if the variable has none."""
    default = field.default
    if default is None or default in ("", (), {}):
        return ""
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if isinstance(default, bool):
        default = str(default).lower()
    elif isinstance(default, int | float):
        return f"`{int(default) if default == int(default) else default}`{_in_larger_units(name, default)}"
    elif isinstance(default, tuple):
        default = ",".join(default)
    elif isinstance(default, Path) and default.is_relative_to(Path.home()):
        default = f"~/{default.relative_to(Path.home())}"
    return f"`{default}`"


def _in_larger_units(name: str, value: float) -> str:
    """A large number of seconds or bytes once more, as people say it."""
    units = {"_s": ((86_400, "days"), (3600, "h"), (60, "min")), "_bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"))}
    for end, sizes in units.items():
        for size, unit in sizes if name.endswith(end) else ():
            if value >= 2 * size or (value >= size and unit != "days"):
                return f" ({value / size:g} {unit})"
    return ""


def unit_of(name: str, field: FieldInfo) -> str:
    """The unit of a number; empty for anything else. Raises LookupError for a number of an unknown unit."""
    if _kinds(field)[0] not in (int, float):
        return ""
    found = _UNITS_BY_NAME.get(name) or next((unit for end, unit in _UNITS_BY_END.items() if name.endswith(end)), None)
    if found is None:
        raise LookupError(f"_UNITS_BY_NAME of tests/docs/settings_table.py lacks {name}")
    return found


if __name__ == "__main__":
    main()

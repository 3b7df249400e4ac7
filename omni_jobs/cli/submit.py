"""The commands that submit one job: a new one, or a fork of another."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect, served_pipeline
from omni_jobs.cli.request_files import files_in
from omni_jobs.cli.screen import show, show_outcome
from omni_jobs.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_jobs.client import Client
    from omni_jobs.priority import Priority
    from omni_jobs.views import JobView, PipelineView, StageView


def submit(
    text: options.TextArgument = None,
    pipeline: options.SubmitPipelineOption = None,
    audio: options.AudioOption = None,
    image: options.ImageOption = None,
    video: options.VideoOption = None,
    prompt_embeds: options.PromptEmbedsOption = None,
    system: options.SystemOption = None,
    modalities: options.ModalitiesOption = None,
    voice: options.VoiceOption = None,
    size: options.SizeOption = None,
    previews: options.PreviewsOption = False,
    keep_payloads: options.KeepPayloadsOption = False,
    param: options.ParamOption = None,
    seed: options.SeedOption = None,
    metadata: options.MetadataOption = None,
    priority: options.PriorityOption = None,
    body: options.BodyOption = None,
    idempotency_key: options.IdempotencyKeyOption = None,
    cancel_after: options.CancelAfterOption = None,
    wait: options.WaitOption = False,
    timeout: options.TimeoutOption = None,
    out: options.WaitingOutOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Submit a job and print its id. With --wait, wait for its end and print its text; fail unless it completed.

    \b
    Examples:
      omni-jobs submit "Tell me about the sea" --modalities text,audio --voice Chelsie --wait --out sea
      omni-jobs submit "What do these pictures show?" --image pictures --wait
      omni-jobs submit "What is said here?" --audio question.wav --param thinker.max_tokens=64
      omni-jobs submit "A lighthouse at dusk" --size 1024x768 --seed 7 --previews --out lighthouse
      omni-jobs submit --pipeline chat --prompt-embeds prompt.safetensors --wait
      omni-jobs submit --body request.json --json
    """
    media = {name: _files_of(paths or []) for name, paths in (("audio", audio), ("images", image), ("videos", video))}
    if body is not None:
        if text is not None or size is not None or any(media.values()):
            raise typer.BadParameter("give a whole request or its parts, not both", param_hint="--body")
        request = _read_body(body)
    else:
        request = _prompt(text, system, media, prompt_embeds)
        request |= _settings(modalities, voice, param, seed, metadata, priority)
    if previews:
        request["previews"] = True
    if keep_payloads:
        request["keep_payloads"] = True
    wanted = None if size is None else picture_size(size)
    with connect(url) as client:
        if body is None:
            request["model"] = pipeline or served_pipeline(client, None).label
        if wanted is not None:
            request["stages"] = stages_of_size(wanted, request, served_pipeline(client, request["model"]))
        keys: dict[str, Any] = {"idempotency_key": idempotency_key, "cancel_after": cancel_after}
        job = client.submit(request, prompt_embeds=prompt_embeds, **keys)
        _follow(client, job, wait, timeout, out, as_json)


def fork(
    job_id: options.JobArgument,
    from_stage: options.ForkStageOption,
    set_: options.SetOption = None,
    voice: options.VoiceOption = None,
    modalities: options.ModalitiesOption = None,
    seed: options.SeedOption = None,
    metadata: options.MetadataOption = None,
    priority: options.PriorityOption = None,
    idempotency_key: options.IdempotencyKeyOption = None,
    cancel_after: options.CancelAfterOption = None,
    wait: options.WaitOption = False,
    timeout: options.TimeoutOption = None,
    out: options.WaitingOutOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Submit a new job that takes over the earlier stages of another one, and print its id.

    The job must keep what its stages hand on: it was submitted with --keep-payloads, or has not completed.

    \b
    Examples:
      omni-jobs fork job-0193… --from talker --voice Ethan --out ethan
      omni-jobs fork job-0193… --from denoise --set denoise.steps=50 --seed 8 --wait
    """
    changes = _settings(modalities, voice, None, seed, metadata, priority)
    if set_:
        changes["stages"] = _parameters(set_, "--set")
    with connect(url) as client:
        keys = {"idempotency_key": idempotency_key, "cancel_after": cancel_after}
        job = client.fork(job_id, from_stage, changes, **keys)
        _follow(client, job, wait, timeout, out, as_json)


def _follow(client: Client, job: JobView, wait: bool, timeout: float | None, out: Path | None, as_json: bool) -> None:
    """Print a job's id; or, to wait, show its progress until its end, save its files to ``out``, print its outcome."""
    from omni_jobs.cli.live import show_progress

    if not wait and out is None:
        show(job, as_json, lambda job: job.id)
        return
    job = show_progress(client, job.id, timeout, out)
    if out is not None:
        client.save(job, out)
    show_outcome(job, as_json, out)


def _files_of(paths: Sequence[Path]) -> Sequence[Path]:
    """Return these files, and in place of a directory all its files, by their names. Raises BadParameter."""
    return [file for path in paths for file in (files_in(path) if path.is_dir() else [path])]


def _read_body(file: str) -> dict[str, Any]:
    """Return the JSON object in a file, or on standard input for ``-``. Raises InvalidRequest."""
    try:
        body = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRequest(f"{file} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"{file} is not a JSON object")
    return body


def _prompt(
    text: str | None, system: str | None, media: Mapping[str, Sequence[Path]], prompt_embeds: Path | None
) -> dict[str, Any]:
    """Return the request's ``messages``; an empty request if ``prompt_embeds`` takes their place."""
    from omni_jobs.client import user_message

    if prompt_embeds is not None:
        if text is not None or system is not None or any(media.values()):
            raise typer.BadParameter("embeddings take the place of text and files", param_hint="--prompt-embeds")
        return {}
    if text is None and not any(media.values()):
        raise typer.BadParameter("a text, a file or --body is needed", param_hint="TEXT")
    system_messages = [] if system is None else [{"role": "system", "content": system}]
    message = user_message(sys.stdin.read() if text == "-" else text, **media)
    return {"messages": [*system_messages, message]}


def _settings(
    modalities: str | None,
    voice: str | None,
    param: Sequence[str] | None,
    seed: int | None,
    metadata: Sequence[str] | None,
    priority: Priority | None,
) -> dict[str, Any]:
    """Return the request's fields for the options that are given."""
    fields: dict[str, Any] = {}
    if modalities is not None:
        fields["modalities"] = [name.strip() for name in modalities.split(",") if name.strip()]
    if priority is not None:
        fields["priority"] = priority.value
    if voice is not None:
        fields["audio"] = {"voice": voice}
    if param:
        fields["stages"] = _parameters(param)
    if seed is not None:
        fields["seed"] = seed
    if metadata:
        fields["metadata"] = dict(_name_and_value(option, "--metadata") for option in metadata)
    return fields


def _parameters(values: Sequence[str], from_option: str = "--param") -> dict[str, dict[str, Any]]:
    """Turn ``thinker.temperature=0`` into {"thinker": {"temperature": 0}}. A value that is not JSON is a string."""
    stages: dict[str, dict[str, Any]] = {}
    for option in values:
        path, value = _name_and_value(option, from_option)
        stage, _, name = path.partition(".")
        if not stage or not name:
            raise typer.BadParameter(f"{option!r} is not STAGE.NAME=VALUE", param_hint=from_option)
        parameters = stages.setdefault(stage, {})
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
    return stages


def _name_and_value(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return name, value


def picture_size(text: str) -> dict[str, int]:
    """Return the ``width`` and ``height``, in pixels, that a text such as ``1024x768`` says. Raises BadParameter."""
    found = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not WIDTHxHEIGHT, such as 1024x768", param_hint="--size")
    return {"width": int(found[1]), "height": int(found[2])}


def stages_of_size(
    size: Mapping[str, int], request: Mapping[str, Any], pipeline: PipelineView
) -> dict[str, dict[str, Any]]:
    """Return a request's ``stages`` with this size for all stages that the job runs and that have one.

    Whether a stage takes the size, the server says. Raises BadParameter if no stage has a width and a height, and if
    the request sets another one.
    """
    by_default = ["text"] if "text" in pipeline.modalities else pipeline.modalities[:1]
    modalities = request.get("modalities") or by_default
    stages = {name: dict(values) for name, values in request.get("stages", {}).items()}
    sized = [stage.name for stage in _run_by(pipeline, modalities) if size.keys() <= stage.parameters.keys()]
    if not sized:
        made = " and ".join(modalities)
        raise typer.BadParameter(
            f"no stage of {pipeline.name} that makes {made} has a width and a height", param_hint="--size"
        )
    for name in sized:
        values = stages.setdefault(name, {})
        for side, length in size.items():
            if values.setdefault(side, length) != length:
                raise typer.BadParameter(f"--param sets another {name}.{side}", param_hint="--size")
    return stages


def _run_by(pipeline: PipelineView, modalities: Sequence[str]) -> list[StageView]:
    """Return the stages that a job with these modalities runs: those that make them, and their inputs' makers."""
    by_name = {stage.name: stage for stage in pipeline.stages}
    wanted = [made.stage for made in pipeline.outputs if made.modality in modalities]
    run: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in by_name and name not in run:
            run.add(name)
            wanted += by_name[name].inputs
    return [stage for stage in pipeline.stages if stage.name in run]

"""A video that a server behind ours makes. That server is one of ours as well, and the worker its client."""

import json
from pathlib import Path

import pytest

from omni_jobs.servers import Server
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import EchoStack
from tests.integration.openai.stock import Stock, stock_client
from tests.integration.openai.test_videos import frames_of, media_of, said, strip_of
from tests.oracles import samples

REMOTE = """
name: remote_video
version: "1"
accepts: [text, image]
stages:
  film:
    kind: remote
    processor: remote_text
    produces: pixels
    engine: {server: local, model: echo_media, endpoint: videos, poll_s: 0.1, keep_videos: true}
outputs:
  video: {stage: film}
"""
PNG = samples.image(160, 96)


def test_a_server_behind_ours_makes_a_video(
    echo_media: ApiServer,
    stock: Stock,
    sqlite_url: str,
    valkey_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = {"local": Server(url=f"http://{echo_media.host}:{echo_media.port}/v1").model_dump(mode="json")}
    monkeypatch.setenv("OMNI_JOBS_SERVERS", json.dumps(servers))
    stack = EchoStack(tmp_path, sqlite_url, valkey_server, pipeline="remote_video", config=REMOTE)
    try:
        stack.start("film")
        with serve(stack.settings) as api, stock_client(f"http://{api.host}:{api.port}") as ours:
            made = ours.client.videos.create_and_poll(
                model="remote_video",
                prompt="a boat",
                seconds="2",  # type: ignore[arg-type]
                size="160x96",  # type: ignore[arg-type]
                input_reference=PNG,
                extra_body={"seed": 11, "fps": 4},
            )
            assert (made.status, made.size, made.seconds, made.error) == ("completed", "160x96", "2", None)
            frames = frames_of(ours.client.videos.download_content(made.id).content)
    finally:
        stack.close()
    assert (len(frames), strip_of(frames[0])) == (8, said(11, "a boat"))
    theirs = stock.client.videos.list(limit=1).data[0]
    assert (theirs.prompt, theirs.size, theirs.seconds) == ("a boat", "160x96", "2")
    assert media_of(echo_media, theirs.id) == [("image/png", PNG)]

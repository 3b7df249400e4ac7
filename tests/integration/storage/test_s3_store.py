"""The object store on S3 (SeaweedFS)."""

import socket
from pathlib import Path

import boto3
import httpx2
import pytest

from omni_jobs.errors import ObjectMissing, StorageUnavailable
from omni_jobs.settings import Settings
from omni_jobs.storage import open_store
from tests.integration.storage.objects import KEY, ref_of
from tests.services.fault_proxy import FaultProxy
from tests.services.seaweedfs import SeaweedFS


class TestS3:
    @pytest.mark.usefixtures("credentials")
    def test_a_wrong_endpoint_is_told(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        store = open_store(
            Settings(data_dir=tmp_path, storage_url="s3://bucket", s3_endpoint_url=f"http://127.0.0.1:{port}")
        )
        with pytest.raises(StorageUnavailable, match=r"EndpointConnectionError") as raised:
            store.check()
        assert raised.value.retryable
        assert "not-to-be-shown" not in str(raised.value)
        with pytest.raises(StorageUnavailable):
            store.put(KEY, [b"x"])
        with pytest.raises(StorageUnavailable):
            store.read(ref_of(KEY, b"x"), max_bytes=1)

    def test_wrong_credentials(self, seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-shown")
        store = open_store(seaweedfs.settings(tmp_path, "x"))
        for refused in (store.check, lambda: store.put(KEY, [b"x"]), lambda: list(store.list())):
            with pytest.raises(StorageUnavailable) as raised:
                refused()
            assert "not-to-be-shown" not in f"{raised.value} {raised.value.__cause__}"

    def test_prepare_makes_the_bucket(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        settings = seaweedfs.settings(tmp_path, "x")
        store = open_store(settings.model_copy(update={"storage_url": "s3://another-bucket/x"}))
        with pytest.raises(StorageUnavailable, match="bucket"):
            store.check()
        store.prepare()
        store.prepare()
        store.check()
        assert store.read(store.put(KEY, [b"x"]), max_bytes=1) == b"x"

    def test_a_bucket_that_is_not_there(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        settings = seaweedfs.settings(tmp_path, "x")
        store = open_store(settings.model_copy(update={"storage_url": "s3://no-such-bucket"}))
        with pytest.raises(StorageUnavailable) as raised:
            store.put(KEY, [b"x"])
        assert not isinstance(raised.value, ObjectMissing)

    def test_the_key_and_media_type_on_the_wire(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        store = open_store(seaweedfs.settings(tmp_path, "deep/prefix"))
        store.put(KEY, [b"x"], media_type="audio/wav")
        client = boto3.client("s3", endpoint_url=seaweedfs.endpoint_url, region_name="us-east-1")
        found = client.head_object(Bucket=seaweedfs.bucket, Key=f"deep/prefix/{KEY}")
        assert found["ContentType"] == "audio/wav"
        assert [each.key for each in store.list()] == [KEY]

    @pytest.mark.parametrize(
        "disposition", ['inline; filename="a.wav"', "attachment; filename=\"_\"; filename*=UTF-8''%E6%BC%A2"]
    )
    def test_whoever_has_the_download_url_gets_the_object_under_the_name_that_it_was_signed_with(
        self, seaweedfs: SeaweedFS, tmp_path: Path, disposition: str
    ) -> None:
        store = open_store(seaweedfs.settings(tmp_path, "x").model_copy(update={"download_url_s": 60}))
        ref = store.put(KEY, [b"0123456789"], media_type="text/html")
        url, head_url = (
            store.download_url(ref, media_type="audio/wav", disposition=disposition, head_only=head_only)
            for head_only in (False, True)
        )
        assert url is not None
        assert head_url is not None
        whole = httpx2.get(url)
        assert (whole.status_code, whole.content) == (200, b"0123456789")
        part = httpx2.get(url, headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
        head = httpx2.head(head_url)
        assert (head.status_code, head.headers["content-length"]) == (200, "10")
        for answer in (whole, part, head):
            assert answer.headers["content-type"] == "audio/wav"
            assert answer.headers["content-disposition"] == disposition
        for changed in (
            url.replace("audio", "video"),
            url.replace("Expires=60", "Expires=61"),
            url.replace("/x/", "/y/"),
        ):
            assert changed != url
            assert httpx2.get(changed).status_code == 403
        assert httpx2.delete(url).status_code == 403
        assert store.read(ref, max_bytes=10) == b"0123456789"

    def test_a_download_url_names_the_endpoint_that_clients_reach(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
            reached = {"download_url_s": 60, "s3_public_endpoint_url": proxy.url}
            store = open_store(seaweedfs.settings(tmp_path, "x").model_copy(update=reached))
            ref = store.put(KEY, [b"x"])
            url = store.download_url(ref, media_type="audio/wav", disposition="inline")
            assert url is not None
            assert url.startswith(f"{proxy.url}/{seaweedfs.bucket}/x/{KEY}?")
            assert httpx2.get(url).content == b"x"

    def test_there_is_no_download_url_unless_the_setting_says_so(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        store = open_store(seaweedfs.settings(tmp_path, "x"))
        assert store.download_url(store.put(KEY, [b"x"]), media_type="audio/wav", disposition="inline") is None

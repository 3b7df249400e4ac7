"""S3 by https: SeaweedFS with its own TLS, and behind an end of TLS that shows wrong certificates."""

from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError, StorageUnavailable
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, open_store
from tests.services.certificates import REFUSED, presented
from tests.services.seaweedfs import SeaweedFS, running_seaweedfs
from tests.services.tls_terminator import TlsTerminator


def store_at(service: SeaweedFS, port: int, directory: Path) -> ObjectStore:
    settings: Settings = service.settings(directory, "tls")
    return open_store(settings.model_copy(update={"s3_endpoint_url": f"https://localhost:{port}"}))


def port_of(service: SeaweedFS) -> int:
    return int(service.endpoint_url.rpartition(":")[2])


def test_seaweedfs_with_its_own_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, trusted = presented(None, tmp_path)
    ports: list[int] = []

    def with_tls(free: list[int]) -> list[str]:
        ports.extend(free)
        files = [f"-s3.cert.file={certificate.file}", f"-s3.key.file={certificate.key_file}"]
        return [f"-s3.port.https={free[0]}", *files]

    with running_seaweedfs(with_tls) as service:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
        store = store_at(service, ports[0], tmp_path)
        stored = store.put("a/b", [b"by TLS"])
        assert bytes(store.read(stored, max_bytes=100)) == b"by TLS"
        store.check_writes()
        monkeypatch.delenv("AWS_CA_BUNDLE")
        with pytest.raises(StorageUnavailable, match=REFUSED["unknown authority"]):
            store_at(service, ports[0], tmp_path).check()


@pytest.mark.parametrize("wrong", sorted(REFUSED))
def test_a_wrong_certificate_is_refused_and_the_error_says_why(
    seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    certificate, trusted = presented(wrong, tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    with TlsTerminator(port_of(seaweedfs), certificate) as tls:
        store = store_at(seaweedfs, tls.port, tmp_path)
        for call in (store.check, store.check_writes, lambda: store.put("a", [b"b"])):
            with pytest.raises(StorageUnavailable) as caught:
                call()
            said = str(caught.value)
            assert f"the certificate of https://localhost:{tls.port} is refused: {REFUSED[wrong]}" in said
            assert any(name in said for name in ("AWS_CA_BUNDLE", "OMNI_JOBS_S3_ENDPOINT_URL")) or wrong == "expired"


def test_a_server_without_tls_is_told_from_one_that_is_away(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    port = port_of(seaweedfs)
    with pytest.raises(StorageUnavailable, match=f"https://localhost:{port} does not speak TLS"):
        store_at(seaweedfs, port, tmp_path).check()


def test_a_bundle_that_is_not_there_is_named_at_the_start(
    seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "gone.pem"))
    with pytest.raises(ConfigError, match=r"AWS_CA_BUNDLE: .*gone\.pem cannot be read: No such file"):
        store_at(seaweedfs, 1, tmp_path)
    assert open_store(seaweedfs.settings(tmp_path, "plain")) is not None, "http needs none"

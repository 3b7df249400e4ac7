"""The connection as it is in production, in a network of its own whose one machine has the internet's addresses.

No parameter of a test's stands in: names come from the system's resolver, ports are the web's, TLS trusts an authority
of the system's.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.certificates import Authority

ROOT = Path(__file__).parents[3]
_NETWORK = """
ip link set lo up
ip address add 93.184.216.34/32 dev lo
ip address add 2606:4700::1234/128 dev lo nodad
mount --bind "$1" /etc/hosts
shift
exec "$@"
"""
_HOSTS = """
127.0.0.1 localhost
93.184.216.34 media.example
2606:4700::1234 six.example
93.184.216.34 mixed.example
10.0.0.1 mixed.example
127.0.0.1 loopback.example
"""
_NOT_PUBLIC = "link (the URL's host has no public address)"
EXPECTED = {
    "http://media.example/a": "body",
    "https://media.example/a": "body",
    "http://93.184.216.34/a": "body",
    "http://six.example/a": "body",
    "http://[2606:4700::1234]/a": "body",
    "https://six.example/a": "answer (the certificate of the URL's host is not trusted)",
    "http://mixed.example/a": _NOT_PUBLIC,
    "http://loopback.example/a": _NOT_PUBLIC,
    "http://127.0.0.1/a": _NOT_PUBLIC,
}
_WORDS = ("unshare", "--net", "--mount", "--propagation", "private")


def test_the_whole_connection_in_a_network_of_its_own(tmp_path: Path) -> None:
    if shutil.which("ip") is None or subprocess.run([*_WORDS, "true"], capture_output=True).returncode:
        pytest.skip("networks cannot be made here")
    authority = Authority(tmp_path)
    authority.server("media.example")
    (tmp_path / "hosts").write_text(_HOSTS)
    python = [sys.executable, "-m", "tests.integration.fetch.internet", str(tmp_path)]
    result = subprocess.run(
        [*_WORDS, "sh", "-e", "-c", _NETWORK, "sh", str(tmp_path / "hosts"), *python],
        env=os.environ | {"SSL_CERT_FILE": str(authority.file), "HTTP_PROXY": "http://127.0.0.1:9"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert dict(line.split(": ") for line in result.stdout.splitlines()) == EXPECTED

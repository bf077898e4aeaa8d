"""Skip the doctests of integrations whose packages are not installed: `make integrations` installs them."""

import os
from importlib.util import find_spec

# Some virtual machines advertise AMX and then refuse its instructions; bfloat16 tests would crash there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

collect_ignore = [
    f"src/excite/integrations/{package}.py" for package in ("lightning", "transformers") if find_spec(package) is None
]

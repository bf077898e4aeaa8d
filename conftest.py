"""Skip the doctests of integrations whose packages are not installed: `make integrations` installs them."""

from importlib.util import find_spec

collect_ignore = [
    f"src/excite/integrations/{package}.py"
    for package in ("lightning", "tensorboard", "transformers")
    if find_spec(package) is None
]

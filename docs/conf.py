"""The documentation site: Sphinx, furo, MyST, sphinx-click and autodoc; `make docs` builds it, warnings are errors."""

from typing import Any

import excite

project = "excite"
author = "the excite authors"
release = excite.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_click"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"  # docstrings write `name` as Markdown does
smartquotes = False  # commands must be copied as they are: no en dash for --
exclude_patterns = ["_build", "study"]
html_theme = "furo"
html_title = f"excite {release}"
html_static_path: list[str] = []
# A page may point at files of the repository (results, sources) that are no pages of the site.
suppress_warnings = ["myst.xref_missing"]


def fences_to_literal_blocks(
    _app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Docstrings show code between ``` as Markdown does; reStructuredText wants `::` and an indentation."""
    inside, result = False, []
    for line in lines:
        if line.strip().startswith("```"):
            inside = not inside
            result += ["", "::", ""] if inside else [""]
        else:
            result.append(f"    {line}" if inside else line)
    lines[:] = result


def returns_to_field(_app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Write `Returns:` as a field, because napoleon would take the words before a colon for a type."""
    result, inside = [], False
    for line in lines:
        if line.strip() == "Returns:":
            inside, prefix = True, ":returns: "
        elif inside and line.strip() and not line.startswith("    "):
            inside = False
            result.append(line)
        elif inside and line.strip():
            result.append(f"{prefix}{line.strip()}")
            prefix = "    "
        else:
            result.append(line)
    lines[:] = result


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", returns_to_field, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", fences_to_literal_blocks)

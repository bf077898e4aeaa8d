"""The documentation site: Sphinx, furo, MyST, sphinx-click and autodoc; `make docs` builds it, warnings are errors."""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

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


class Notebook(SphinxDirective):
    """Show a notebook with its stored outputs: text and PNG images."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        return self.parse_text_to_nodes("\n\n".join(map(markdown, cells)), allow_section_headings=True)


def markdown(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        if "text" in output:
            parts.append(f"```text\n{''.join(output['text'])}\n```")
        elif image := output.get("data", {}).get("image/png"):
            parts.append(f"![output](data:image/png;base64,{''.join(image).replace(chr(10), '')})")
    return "\n\n".join(parts)


def setup(app: Any) -> None:
    app.add_directive("notebook", Notebook)
    app.connect("autodoc-process-docstring", returns_to_field, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", fences_to_literal_blocks)

"""What is wrong with a notebook that has run: cells that failed, outputs that not everyone can use."""

from typing import Any

from tests.browser.page import Notebook

OUTPUT = ".jp-OutputArea-output"
_COUNTED = ("serious", "critical")

# ipywidgets gives the handle of a slider no name and offers no way to. One that moves together with a number
# box of its own row does no harm to those who cannot see it: the box has the name. A slider alone is ours.
_HAS_A_NUMBER_BESIDE_IT = """selector => {
  const row = document.querySelector(selector)?.closest('.widget-hbox');
  const box = row?.querySelector('input[type=number]');
  return !!box && !!row.querySelector(`label[for="${box.id}"]`)?.textContent.trim();
}"""


def in_cells(notebook: Notebook) -> list[str]:
    """Cells that stopped with an error without the tag that allows it, and those that never ran."""
    problems = []
    for number, cell in enumerate(notebook.cells()):
        if cell["cell_type"] != "code" or not "".join(cell["source"]).strip():
            continue
        is_allowed = "raises-exception" in cell["metadata"].get("tags", [])
        raised = [out for out in cell["outputs"] if out["output_type"] == "error"]
        problems += [
            f"cell {number}: {out['ename']}: {out['evalue'][:300]}" for out in raised if not is_allowed
        ]
        problems += [f"cell {number} did not run"] if cell["execution_count"] is None else []
        problems += [f"cell {number} on stderr: {text[:300]}" for text in _warned(cell)]
    return problems


def _warned(cell: dict[str, Any]) -> list[str]:
    streams = [out for out in cell["outputs"] if out["output_type"] == "stream" and out["name"] == "stderr"]
    return ["".join(out["text"]) for out in streams]


def for_screen_readers(notebook: Notebook) -> list[str]:
    """axe's serious and critical findings in what our cells show, without those of JupyterLab around it."""
    from axe_playwright_python.sync_playwright import Axe

    if not notebook.page.locator(OUTPUT).count():
        return []
    found = Axe().run(notebook.page, {"include": [[OUTPUT]]}, {"resultTypes": ["violations"]})
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:200]}"
        for rule in found.response["violations"]
        if rule["impact"] in _COUNTED
        for node in rule["nodes"]
        if not _is_of_ipywidgets(notebook, rule["id"], node)
    ]


def _is_of_ipywidgets(notebook: Notebook, rule: str, node: dict[str, Any]) -> bool:
    is_handle = rule == "aria-input-field-name" and "noUi-handle" in node["html"]
    return is_handle and notebook.page.evaluate(_HAS_A_NUMBER_BESIDE_IT, node["target"][0])

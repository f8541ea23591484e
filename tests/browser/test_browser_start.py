"""The start page in a real browser: it opens by itself and leads to a lesson."""


def test_the_start_page_leads_to_lesson_00(lab):
    shown = lab.evaluate("jupyterapp.shell.currentWidget.context.path")
    assert shown == "START.md"
    lab.get_by_role("link", name="lesson 00").click()
    lab.wait_for_function(
        "jupyterapp.shell.currentWidget?.context?.path === 'notebooks/00_start_here.ipynb'"
    )
    lab.get_by_role("heading", name="00 Start here").wait_for()

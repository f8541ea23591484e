"""The start page in a real browser: it opens by itself and leads to a lesson and to a solution."""

from notebooks_made import ROOT


def test_the_start_page_leads_to_lesson_00_and_nothing_of_the_house_is_listed(lab):
    shown = lab.evaluate("jupyterapp.shell.currentWidget.context.path")
    assert shown == "START.md"
    lab.get_by_role("link", name="lesson 00").click()
    lab.wait_for_function(
        "jupyterapp.shell.currentWidget?.context?.path === 'notebooks/00_start_here.ipynb'"
    )
    lab.get_by_role("heading", name="00 Start here").wait_for()
    # Beside it the list of files has what learners put there, too, as other tests do.
    entries = lab.locator(".jp-DirListing-item .jp-DirListing-itemName")
    entries.get_by_text("START.md").wait_for()
    ours = {path.name for path in ROOT.iterdir()} & set(entries.all_inner_texts())
    assert ours == {"START.md", "exercises", "notebooks"}


def test_a_solution_that_is_not_in_the_list_of_files_opens_by_its_link(lab):
    lab.evaluate("jupyterapp.commands.execute('docmanager:open', { path: 'START.md' }).then()")
    lab.get_by_role("link", name="solution").first.click()
    lab.wait_for_function(
        "jupyterapp.shell.currentWidget?.context?.path === 'solutions/01_ranks_and_clusters.ipynb'"
    )
    lab.get_by_role("heading", name="Exercises").first.wait_for()

"""The note that what stands on a page is old: while no answer comes, and until one does."""

from playwright.sync_api import Route, expect

from tests.browser.visitor import Visitor


def test_a_page_that_gets_no_answer_says_so_and_goes_on_by_itself(visitor: Visitor) -> None:
    page, held = visitor.page, list[Route]()
    note = page.locator("#freshness")
    is_away = True

    def answer(route: Route) -> None:
        if is_away:
            held.append(route)
        else:
            route.continue_()

    page.clock.install()
    page.route("**/fragments/overview", answer)
    with page.expect_request("**/fragments/overview"):
        page.goto("/")
        page.clock.run_for(2_500)
    expect(note).to_be_hidden()
    page.clock.run_for(3_000)
    expect(note).to_be_visible()
    is_away = False
    for route in held:
        route.continue_()
    expect(note).to_be_hidden()

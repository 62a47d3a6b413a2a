"""A strict Content-Security-Policy over every page, and what the browser reports to have broken it."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

REPORTS = "/reports/"
POLICY = f"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; report-uri {REPORTS}"

reported: list[str] = []


class StrictPolicy:
    """Middleware that sends the policy and takes the reports, before anything else looks at the request."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path == REPORTS:
            reported.append(request.body.decode())
            return HttpResponse(status=204)
        response = self.get_response(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

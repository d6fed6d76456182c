"""The web application: its routes and the layer in front of them."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from zeus_stream.screens.web.access.doorway import Doorway
from zeus_stream.screens.web.access.security import WebSecurity
from zeus_stream.screens.web.page_frame import notice
from zeus_stream.screens.web.routes import data_routes, pages, sql_page
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.static_files import static_files

FOREVER = "public, max-age=31536000, immutable"


async def static(request: Request) -> Response:
    """Answer ``/static/NAME``: names hold a digest, so a browser asks once."""
    name = request.path_params["name"]
    for file in static_files().values():
        if file.name == name:
            headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
            if "gzip" in request.headers.get("accept-encoding", ""):
                return Response(
                    file.compressed, 200, {**headers, "Content-Encoding": "gzip"}, file.media_type
                )
            return Response(file.content, 200, headers, file.media_type)
    raise HTTPException(404)


ROUTES = (
    Route("/", pages.overview),
    Route("/runs/{run:path}", pages.run),
    Route("/gpus/{gpu:path}", pages.gpu),
    Route("/jobs", pages.jobs),
    Route("/jobs/{job:path}", pages.job),
    Route("/waste", pages.waste),
    Route("/sql", sql_page.sql),
    Route("/api/now", data_routes.now),
    Route("/api/events", data_routes.events),
    Route("/api/hour", data_routes.hour_of_site),
    Route("/api/runs/{run:path}", data_routes.run),
    Route("/api/power", data_routes.power),
    Route("/api/steps", data_routes.steps),
    Route("/api/sql", data_routes.sql),
    Route("/metrics", data_routes.metrics),
    Route("/-/healthy", data_routes.healthy),
    Route("/-/ready", data_routes.ready),
    Route("/static/{name}", static),
)
"""Every route. All of them only read: there is no other method than GET and HEAD."""


def build(site: Site, gatekeeper: WebSecurity, *, secure: bool = False) -> ASGIApp:
    """Return the application. ``secure``: it is reached over TLS."""

    async def not_found(_request: Request, wrong: Exception) -> Response:
        status = wrong.status_code if isinstance(wrong, HTTPException) else 404
        return HTMLResponse(
            notice("There is no such page." if status == 404 else "Only GET is answered."), status
        )

    app = Starlette(routes=list(ROUTES), exception_handlers={HTTPException: not_found})
    app.state.site = site
    return Doorway(app, gatekeeper, secure=secure)

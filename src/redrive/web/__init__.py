"""The operator's desk: pages on what the jobs do, and what can be done about them. Closed unless somebody opened it.

``desk(queue, password=...)`` is an ASGI application, to be mounted in FastAPI and Starlette as it is and in Flask and
other WSGI applications as ``as_wsgi(desk(...))``; ``redrive ui`` serves it alone. It needs the extra:
``pip install 'redrive[web]'``.
"""

from __future__ import annotations

from redrive.web.app import desk
from redrive.web.operators import Operator
from redrive.web.wsgi import as_wsgi

__all__ = ["Operator", "as_wsgi", "desk"]

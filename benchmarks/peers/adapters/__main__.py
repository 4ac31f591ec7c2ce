"""Run an adapter: ``python -m adapters NAME info|setup|producer|work``."""

import sys

from adapters import host

host.serve(sys.argv[1], sys.argv[2])

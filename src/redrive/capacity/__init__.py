"""How far an installation goes, and which step is next when that is not enough: what ``redrive capacity`` works out.

What is known of the installation's own database (:mod:`~redrive.capacity.facts`) goes before what was measured
elsewhere (:mod:`~redrive.capacity.costs`), and every figure says which it is. It reads and works out; it changes
nothing, and it measures nothing: that is ``redrive bench``.
"""

from __future__ import annotations

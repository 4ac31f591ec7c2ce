"""Paperplane, a small invoicing service: what it does in the background, and how an order sets it going.

``shop`` is the web side. ``jobs`` has the queue and its handlers, ``mail``, ``webhooks`` and ``invoices`` do the work
and know nothing of redrive.
"""

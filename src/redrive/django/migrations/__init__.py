"""One migration of Django's for each of redrive's own, under the same number and name; tests see to it."""

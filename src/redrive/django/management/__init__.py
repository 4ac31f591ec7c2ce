"""What ``manage.py`` has of redrive."""

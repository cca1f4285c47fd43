"""A check-out behind a web application: begun by a request, approved by a webhook, followed over server-sent events."""

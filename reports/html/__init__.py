"""The report as one HTML page that needs no network, no other file and no server."""

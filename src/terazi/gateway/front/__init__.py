"""The service's own HTTP server: a bare protocol that answers the hot paths, and hands all else to aiohttp.

In: bytes of clients. Out: ``Call`` and ``Sink`` to the broker for a hot path; for any other request one that was
read whole, checked and written anew, to aiohttp. No request reaches either before its head and body are complete
and bounded, so slow, oversized and ambiguous ones end here. Nothing here may wait, or parse what it forwards.
"""

"""The library: everything that decides, and the client. No event loop, no Faust.

A client needs `stream.client` alone. The roles `stream.cluster_head` and `stream.global_model`
think without IO; `agents` talks to Kafka for them.
"""

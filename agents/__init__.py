"""The processes: Kafka shells around `stream`, and the command `sdp`."""

"""The demonstration: real gradients of two thousand clients become a private model, on Kafka.

Everything that is shown runs as in production: two cluster heads, the global agent and the
clients are processes of their own that meet only on Kafka. What is here is what a deployment
has of its own (data, training, client programs), and somebody who watches.

- `data`, `training`: the images, a softmax regression, the baseline without privacy.
- `plan`: the demonstration's privacy plan.
- `fleet`: the program of the clients.
- `watch`, `display`, `report`: what is seen from outside, live and at the end.
- `processes`, `run`, `command`: start everything, judge it, leave nothing behind.
- `mock`: where no Kafka can be had, the same on librdkafka's mock cluster, and what that lacks.
"""

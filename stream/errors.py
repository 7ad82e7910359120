"""Everything `stream` raises on purpose.

StreamError
├── PlanError              a privacy plan that cannot be honoured
├── GradientError          a client's gradient that cannot be published (NaN, infinity, shape)
├── BudgetExhaustedError   the ledger refuses a charge
├── LedgerError            the durable record of charges is missing, broken or foreign
├── DeliveryError          Kafka did not acknowledge a record
└── EntropyError           the operating system or the cipher gave no random bits

A bad update is not an error of ours: it is a `Rejection`, a value.
"""


class StreamError(Exception):
    """Base of every error that this package raises on purpose."""


class PlanError(StreamError):
    """A privacy plan that cannot be honoured; the message says what to write instead."""


class GradientError(StreamError, ValueError):
    """A gradient that cannot be published; nothing was sent."""


class BudgetExhaustedError(StreamError):
    """The ledger refuses a charge; nothing was recorded."""


class LedgerError(StreamError):
    """The durable record of charges cannot be trusted; the message names the remedy."""


class DeliveryError(StreamError):
    """Kafka did not acknowledge a record."""


class EntropyError(StreamError):
    """No trustworthy random bits could be had; nothing was sampled."""

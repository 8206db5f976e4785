"""The one exception that a person's mistake ends in: a clear line, exit status 2, no traceback."""


class UserError(Exception):
    """Bad input from a person: the message names the field, the value and what is accepted, in one line."""


def bad_value(field: str, value: object, accepted: str) -> UserError:
    """Build the usual message: which field, what it was, what it may be."""
    return UserError(f"{field}: {value!r} is not accepted; expected {accepted}")

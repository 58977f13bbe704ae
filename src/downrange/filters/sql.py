"""`Sql`: an SQL92 filter that was checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from downrange.checks import check_text
from downrange.errors import InvalidSql
from downrange.filters import strict


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over the properties of messages: only those that match are delivered.

    Use it where tags are used. The broker must have `enablePropertyFilter` set; the embedded one
    has it set by default.

    The expression is checked here, before anything is sent. Apache's broker accepts expressions
    that do something else than they say, and ignores what it does not understand at their end.
    Such an expression is refused with a mark under the mistake and the way to write it.

    Properties are texts. The other side of a comparison decides how they are compared: with 5 as
    whole numbers, with 5.0 as decimal ones, with TRUE as truth values, with '5' as texts. A message
    whose property cannot be read like that, or that does not have it, does not match.

    Args:
        expression: Such as "amount > 100 AND region IN ('eu', 'us')".

    Raises:
        OptionError: The expression is not a str.
        InvalidSql: The expression is wrong.

    Example:
        ```python
        consumer.assign("orders", tags=Sql("amount > 100 AND region <> 'eu'"))
        ```
    """

    expression: str
    #: Where CONTAINS, STARTSWITH or ENDSWITH stands first; brokers before 5.1.3 ignore them.
    _search_at: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the expression."""
        check_text("expression", self.expression)
        object.__setattr__(self, "_search_at", strict.check(self.expression).search_at)

    def __str__(self) -> str:
        """Return the expression."""
        return self.expression

    @property
    def has_search(self) -> bool:
        """Whether it has CONTAINS, STARTSWITH or ENDSWITH, which brokers know from 5.1.3 on."""
        return self._search_at is not None

    def refused_by_old_broker(self, address: str) -> InvalidSql:
        """Return the error for a broker that does not know a word of the expression."""
        problem = f"broker {address} is older than 5.1.3 and does not know this word"
        return InvalidSql(
            self.expression, self._search_at or 0, problem, "compare by = or IN, or update it"
        )

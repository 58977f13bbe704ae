"""SQL92 filters over message properties: Apache's grammar, its verdicts, and a stricter check."""

"""Questions about all of a desk of invoices, leases, minutes, mails and sheets, with checked answers."""

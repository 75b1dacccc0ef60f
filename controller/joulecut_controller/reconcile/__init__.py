"""The pass: its order, its hands (leases), its memory of each job, and its audit trail."""

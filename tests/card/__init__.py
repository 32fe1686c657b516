"""A report of a real RDMA card, for somebody who has one to send to those who have none."""

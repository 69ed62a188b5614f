-- Replies are sent after this.
COMMIT

-- Nobody is answered before this.
COMMIT

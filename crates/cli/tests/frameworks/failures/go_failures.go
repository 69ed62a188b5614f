// Charges a card behind http.TimeoutHandler, which answers 503 before the card is charged.
//
// GET /ledger says how many charges were made and how many requests still run.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	limit       = 200 * time.Millisecond // until a slow request is answered
	cardNetwork = 600 * time.Millisecond // until the card network has charged
)

var (
	lock   sync.Mutex
	ledger struct {
		Charges int `json:"charges"`
		Running int `json:"running"`
	}
)

func add(charges, running int) {
	lock.Lock()
	defer lock.Unlock()
	ledger.Charges += charges
	ledger.Running += running
}

// TimeoutHandler does not stop it: the goroutine goes on, and what it writes is dropped.
func chargeSlowly(w http.ResponseWriter, r *http.Request) {
	add(0, 1)
	time.Sleep(cardNetwork)
	add(1, -1)
	w.WriteHeader(http.StatusCreated)
}

func readLedger(w http.ResponseWriter, r *http.Request) {
	lock.Lock()
	defer lock.Unlock()
	if err := json.NewEncoder(w).Encode(ledger); err != nil {
		log.Print(err)
	}
}

func main() {
	mux := http.NewServeMux()
	mux.Handle("/slow", http.TimeoutHandler(http.HandlerFunc(chargeSlowly), limit, "too slow"))
	mux.HandleFunc("/ledger", readLedger)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(os.Stderr, "running on http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, mux))
}

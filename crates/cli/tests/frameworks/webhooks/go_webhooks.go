// Go's http.ServeMux. GET /hits says how often the handler ran.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

func main() {
	var hits atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/webhooks/stripe", func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		fmt.Fprint(w, "handled")
	})
	mux.HandleFunc("/hits", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, hits.Load())
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(os.Stderr, "running on http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, mux))
}

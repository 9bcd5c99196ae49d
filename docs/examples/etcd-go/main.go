// A client program of Seatrial for registers in etcd, by etcd's own client library.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

type setup struct {
	Servers  []string
	Settings struct{ Serializable bool }
}

type request struct {
	Id   int
	Call string
	Args []json.RawMessage
}

var (
	etcd    *clientv3.Client
	options []clientv3.OpOption // of reads
	output  sync.Mutex
)

func print(line map[string]any) {
	output.Lock()
	defer output.Unlock()
	json.NewEncoder(os.Stdout).Encode(line)
}

func main() {
	print(map[string]any{"seatrial": 1, "calls": []string{"read", "write", "cas"}})
	lines := bufio.NewScanner(os.Stdin)
	var given setup
	if !lines.Scan() {
		return // it was started for its hello alone
	}
	if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
		panic(err)
	}
	endpoints := []string{}
	for _, server := range given.Servers {
		endpoints = append(endpoints, server+":2379")
	}
	var err error
	if etcd, err = clientv3.New(clientv3.Config{Endpoints: endpoints}); err != nil {
		panic(err)
	}
	if given.Settings.Serializable {
		options = append(options, clientv3.WithSerializable())
	}
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		go answer(asked)
	}
}

func answer(asked request) {
	value, err := call(asked)
	switch {
	case err == nil:
		print(map[string]any{"id": asked.Id, "ok": value})
	case certain(err):
		print(map[string]any{"id": asked.Id, "fail": err.Error()})
	default:
		print(map[string]any{"id": asked.Id, "info": err.Error()})
	}
}

// certain returns whether an error means that nothing was done, and never will be.
func certain(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyRequests) || errors.Is(err, rpctypes.ErrNoSpace)
}

func call(asked request) (any, error) {
	within, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var key string
	var numbers [3]*int64 // null: nil
	json.Unmarshal(asked.Args[0], &key)
	for at, argument := range asked.Args[1:] {
		json.Unmarshal(argument, &numbers[at])
	}
	switch asked.Call {
	case "read":
		found, err := etcd.Get(within, key, options...)
		if err != nil || len(found.Kvs) == 0 {
			return nil, err
		}
		return strconv.ParseInt(string(found.Kvs[0].Value), 10, 64)
	case "write":
		_, err := etcd.Put(within, key, fmt.Sprint(*numbers[0]))
		return nil, err
	default: // cas: no old value means that there must be none
		unchanged := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
		if numbers[0] != nil {
			unchanged = clientv3.Compare(clientv3.Value(key), "=", fmt.Sprint(*numbers[0]))
		}
		change := clientv3.OpPut(key, fmt.Sprint(*numbers[1]))
		done, err := etcd.Txn(within).If(unchanged).Then(change).Commit()
		if err != nil {
			return nil, err
		}
		return done.Succeeded, nil
	}
}

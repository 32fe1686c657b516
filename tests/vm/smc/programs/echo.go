// A static client in Go, which calls the kernel itself: IPPROTO_SMC. LOCAL HOST PORT BYTES; it checks the echo.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
)

const ipprotoSMC = 256

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func address(host string, port int) *syscall.SockaddrInet4 {
	made := &syscall.SockaddrInet4{Port: port}
	copy(made.Addr[:], net.ParseIP(host).To4())
	return made
}

func main() {
	port, err := strconv.Atoi(os.Args[3])
	check(err)
	size, err := strconv.Atoi(os.Args[4])
	check(err)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, ipprotoSMC)
	check(err)
	check(syscall.Bind(fd, address(os.Args[1], 0)))
	check(syscall.Connect(fd, address(os.Args[2], port)))
	check(syscall.SetNonblock(fd, true)) // the runtime's poller waits for it, as for any connection
	connection := os.NewFile(uintptr(fd), "smc")
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7)
	}
	sent := make(chan error)
	go func() {
		_, err := connection.Write(data)
		sent <- err
	}()
	got := make([]byte, size)
	_, err = io.ReadFull(connection, got)
	check(err)
	check(<-sent)
	if !bytes.Equal(data, got) {
		fmt.Fprintln(os.Stderr, "wrong bytes")
		os.Exit(1)
	}
	check(connection.Close())
	fmt.Println("closed")
}

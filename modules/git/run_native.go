//go:build !wasip1

package main

import "os"

func main() { os.Exit(runMain(os.Args[1:])) }

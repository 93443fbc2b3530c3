// Program opens calls Where of the plugin that its argument names. It has no code of Kiln's.
package main

import (
	"fmt"
	"os"
	"plugin"
)

func main() {
	p, err := plugin.Open(os.Args[1])
	if err != nil {
		fmt.Println(err)
		return
	}
	where, err := p.Lookup("Where")
	if err != nil {
		fmt.Println(err)
		return
	}
	where.(func())()
}

package actors_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/actors"
)

// deposit is the message of a bank's actor, with the slot for its answer.
type deposit struct {
	account string
	amount  int
	reply   actors.Reply[int]
}

// Fail answers a deposit whose turn panicked.
func (d deposit) Fail(err error) { d.reply.Fail(err) }

// The state lives beside the actor, which is the only one to write it.
func Example() {
	balance := make(map[string]int)
	bank := actors.Spawn(actors.Config{Name: "bank", Admission: 100}, func(d deposit) {
		balance[d.account] += d.amount
		d.reply.Send(balance[d.account])
	})
	ctx := context.Background()
	put := func(account string, amount int) (int, error) {
		return actors.Ask(ctx, bank, func(r actors.Reply[int]) deposit { return deposit{account, amount, r} })
	}
	put("ann", 5)
	fmt.Println(put("ann", 7))

	bank.Stop(ctx)
	_, err := put("ann", 1)
	fmt.Println(err)
	// Output:
	// 12 <nil>
	// closed
}

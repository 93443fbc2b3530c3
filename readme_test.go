package kiln_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Example_embed is the README's program.
func Example_embed() {
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{})) // reads the environment once
	defer rt.Close(ctx)
	session := must(rt.Session(rt.SessionDefaults()))                       // one predictor, executor or tenant
	group := must(session.Group(ctx, must(shapegroups.Of([]int64{1, 37})))) // what is cached for the request's shape
	defer group.Close()
	for _, op := range []string{"query", "key", "value"} { // the operations of a model
		ref, how, err := session.Artefact(ctx, group, op, sessioncache.Options{}, artefacts.Request{
			Key: "matmul 37x384x384", // canonical: equal keys, one artefact
			Create: func(ctx context.Context) (artefacts.Built, error) {
				return artefacts.Built{Value: "compiled " + op, Bytes: 64}, nil // your compiler
			},
		})
		fmt.Println(op, how.Event, ref.Value(), err)
	}
	// Output:
	// query miss compiled query <nil>
	// key miss compiled query <nil>
	// value miss compiled query <nil>
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// What the README tells people to paste is what runs here.
func TestReadmeProgram(t *testing.T) {
	readme := must(os.ReadFile("README.md"))
	here := must(os.ReadFile("readme_test.go"))
	_, program, _ := strings.Cut(string(readme), "func main() {\n")
	body, helper, found := strings.Cut(program, "\n}\n")
	helper, _, _ = strings.Cut(helper, "```")
	if !found || !strings.Contains(string(here), body) || !strings.Contains(string(here), helper) {
		t.Errorf("README.md has another program than Example_embed:\n%s", body)
	}
}
